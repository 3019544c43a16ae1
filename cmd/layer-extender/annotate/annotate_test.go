package annotate

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/usage"
)

// node returns a node of 4000m and 10000 bytes.
func node(name string, annotations map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("10000"),
	}}}
}

// measured is a Source that a test sets.
type measured struct {
	uses Uses
	err  error
}

func (m *measured) Read(context.Context) (Uses, error) { return m.uses, m.err }

func use(cpu, memory float64) map[v1.ResourceName]Use {
	return map[v1.ResourceName]Use{v1.ResourceCPU: {Mean: cpu, Deviation: 100}, v1.ResourceMemory: {Mean: memory}}
}

// TestUpdate has what nodes state follow what is measured: what has changed notably is written, and what
// would end to count.
func TestUpdate(t *testing.T) {
	client := fake.NewClientset(node("n1", map[string]string{"other": "kept", "forcasted-free-cpu": "N/A"}), node("n2", nil))
	source, clock := &measured{}, clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	a := New(client, source, clock)
	forecast := use(1000, 4000)
	forecast[v1.ResourceCPU] = Use{Mean: 1000, Deviation: 100, Forecast: ptr.To(5000.)}
	cpu := map[v1.ResourceName]Use{v1.ResourceCPU: {Mean: 1000, Deviation: 100}}
	const until = "2026-01-02T03:14:05Z"
	for _, c := range []struct {
		what string
		uses map[v1.ResourceName]Use // of n1
		step time.Duration
		want map[string]string // nil: nothing is written
	}{
		{"first", use(1000, 4000), 0, map[string]string{"mean-free-cpu": "3000", "std-free-cpu": "100", "mean-free-memory": "6000", "std-free-memory": "0", usage.Until: until}},
		{"the same", use(1000, 4000), 0, nil},
		{"nearly the same", use(1040, 3900), 0, nil},
		{"more CPU", use(1041, 4000), 0, map[string]string{"mean-free-cpu": "2959", "std-free-cpu": "100", "mean-free-memory": "6000", "std-free-memory": "0", usage.Until: until}},
		{"more memory than there is", use(1041, 12000), 0, map[string]string{"mean-free-cpu": "2959", "std-free-cpu": "100", "mean-free-memory": "0", "std-free-memory": "0", usage.Until: until}},
		{"a forecast", forecast, 0, map[string]string{"mean-free-cpu": "3000", "std-free-cpu": "100", "forcasted-free-cpu": "0", "mean-free-memory": "6000", "std-free-memory": "0", usage.Until: until}},
		{"no memory", cpu, 0, map[string]string{"mean-free-cpu": "3000", "std-free-cpu": "100", usage.Until: until}},
		{"still none", cpu, 0, nil},
		{"half of its time", cpu, refresh, nil},
		{"more", cpu, time.Second, map[string]string{"mean-free-cpu": "3000", "std-free-cpu": "100", usage.Until: "2026-01-02T03:19:06Z"}},
	} {
		clock.Step(c.step)
		source.uses = Uses{"n1": c.uses, "gone": use(1, 1)}
		written, err := a.Update(t.Context())
		if want := map[bool]int{false: 1}[c.want == nil]; err != nil || written != want {
			t.Errorf("%s: %d nodes written, %v", c.what, written, err)
		}
		got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c.want == nil {
			continue
		}
		if c.want["other"] = "kept"; !maps.Equal(got.Annotations, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got.Annotations, c.want)
		}
	}
	if other, err := client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{}); err != nil || len(other.Annotations) != 0 {
		t.Errorf("a node that nobody measures: %v %v", other.Annotations, err)
	}
}

// TestFaults: of what fails, the error has all, and the other nodes are written.
func TestFaults(t *testing.T) {
	client, source := fake.NewClientset(node("n1", nil), node("n2", nil)), &measured{uses: Uses{"n1": use(1, 1), "n2": use(1, 1)}}
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.PatchAction).GetName() == "n1", nil, errors.New("on purpose")
	})
	a := New(client, source, clocktesting.NewFakeClock(time.Now()))
	if written, err := a.Update(t.Context()); written != 1 || err == nil || !strings.Contains(err.Error(), "node n1: on purpose") {
		t.Errorf("%d nodes written, %v", written, err)
	}
	source.uses = Uses{"10.0.0.1": use(1, 1)}
	if _, err := a.Update(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing is measured of 2 nodes") {
		t.Errorf("names of other things: %v", err)
	}
	source.err = errors.New("away")
	if written, err := a.Update(t.Context()); written != 0 || !errors.Is(err, source.err) {
		t.Errorf("%d nodes written, %v", written, err)
	}
}

// TestRun measures at once and then each minute, and logs the begin and the end of faults.
func TestRun(t *testing.T) {
	clock, logger := clocktesting.NewFakeClock(time.Now()), ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	results := make(chan error)
	source := sourceFunc(func() (Uses, error) { return Uses{"n1": use(1, 1)}, <-results })
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	done := make(chan struct{})
	go func() { New(fake.NewClientset(node("n1", nil)), source, clock).Run(ctx); close(done) }()
	for _, err := range []error{errors.New("on purpose"), errors.New("on purpose"), nil, nil} {
		results <- err // it measures
		for end := time.Now().Add(time.Minute); !clock.HasWaiters() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		clock.Step(Interval)
	}
	results <- nil
	cancel()
	<-done
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if strings.Count(text, "Cannot annotate nodes") != 1 || strings.Count(text, "annotated again") != 1 {
		t.Error(text)
	}
}

type sourceFunc func() (Uses, error)

func (f sourceFunc) Read(context.Context) (Uses, error) { return f() }

package qosaware

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// process is a scheduler, as far as its state is concerned.
type process struct {
	*store
	clock   *clocktesting.FakePassiveClock
	results map[string]int
}

func newProcess(client *fake.Clientset) *process {
	p := &process{clock: clocktesting.NewFakePassiveClock(start), results: map[string]int{}}
	b := ledger.New(ledger.Config{
		Args: &config.QosAwareArgs{MeasureFrom: config.MeasureFromBound, AcceptablePreemptionOverhead: 1}, Clock: p.clock,
		Owners: func(string, metav1.OwnerReference) (ledger.Owner, bool) { return ledger.Owner{}, true },
	})
	p.store = &store{client: client, name: "state", ledger: b, count: func(result string) { p.results[result]++ }}
	return p
}

// end has a pod end after so many seconds in which it waited.
func (p *process) end(name string, seconds int) {
	pod := queued(name, 0, 0, "0.5").Pod
	pod.CreationTimestamp = metav1.NewTime(p.clock.Now())
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: name, UID: pod.UID + "-job", Controller: ptr.To(true)}}
	_ = p.ledger.Observe(pod)
	p.clock.SetTime(p.clock.Now().Add(time.Duration(seconds) * time.Second))
	p.ledger.Remove(pod)
}

func (p *process) waited() float64 {
	sum := 0.
	for _, row := range p.ledger.Rows(false) {
		sum += row.Sums.Waiting
	}
	return sum
}

func TestStore(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	writes := func() (n int) {
		for _, action := range client.Actions() {
			if action.GetVerb() == "create" || action.GetVerb() == "update" {
				n++
			}
		}
		return n
	}
	leader := newProcess(client)
	leader.load(ctx, true)
	step := func(what string, seconds int, want int) {
		t.Helper()
		leader.clock.SetTime(leader.clock.Now().Add(time.Duration(seconds) * time.Second))
		leader.sync(ctx, leader.clock.Now())
		if writes() != want || leader.results["success"] != want {
			t.Errorf("%s: %d writes, counted %v, want %d", what, writes(), leader.results, want)
		}
	}
	leader.end("a", 10)
	step("a process that binds no pods", 0, 0)
	leader.binds.Store(true)
	step("one that does", 0, 1)
	leader.end("b", 1)
	step("a second later", 0, 1)
	step("two seconds later", 1, 2)
	step("nothing changes", 59, 2)
	step("nothing changes, for a minute", 1, 3)
	leader.end("c", 1)
	step("a pod ended", 1, 4)

	// A standby that saw only the last pod takes over: nothing is lost or counted twice.
	standby := newProcess(client)
	standby.end("c", 1)
	standby.binds.Store(true)
	standby.sync(ctx, standby.clock.Now())
	if got := standby.waited(); got != 12 {
		t.Errorf("the standby has %v s, want 12", got)
	}
	next := newProcess(client)
	next.load(ctx, true)
	if got := next.waited(); got != 12 {
		t.Errorf("the next process has %v s, want 12", got)
	}
}

// TestPause checks that large states are written less often than small ones.
func TestPause(t *testing.T) {
	for bytes, want := range map[int]time.Duration{0: leastPause, 1000: leastPause, 150_000: 10 * time.Second, 900_000: saveEvery, 1_000_000: saveEvery} {
		if got := pauseAfter(bytes); got != want {
			t.Errorf("after %d bytes: %v, want %v", bytes, got, want)
		}
	}
}

func TestStoreFails(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	var failing string
	client.PrependReactor("*", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetVerb() == failing {
			return true, nil, errors.New("not today")
		}
		return false, nil, nil
	})
	p := newProcess(client)
	p.binds.Store(true)
	p.end("a", 10)
	failing = "get"
	p.load(ctx, true)
	p.sync(ctx, p.clock.Now())
	if p.loaded || p.tookOver {
		t.Error("what could not be read was loaded: the next write would replace it")
	}
	failing = "create"
	p.sync(ctx, p.clock.Now())
	if len(p.results) > 0 {
		t.Error("the API server was asked again at once")
	}
	p.clock.SetTime(p.clock.Now().Add(saveEvery))
	p.sync(ctx, p.clock.Now())
	if p.results["error"] != 1 {
		t.Errorf("counted %v", p.results)
	}
	failing = ""
	p.clock.SetTime(p.clock.Now().Add(saveEvery))
	p.sync(ctx, p.clock.Now())
	if p.results["success"] != 1 {
		t.Errorf("what could not be saved is not saved later: %v", p.results)
	}

	damaged, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "state", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	damaged.BinaryData = nil
	if _, err := client.CoreV1().ConfigMaps("kube-system").Update(ctx, damaged, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	next := newProcess(client)
	next.load(ctx, true)
	if !next.loaded || next.results["unusable"] != 1 {
		t.Errorf("loaded %v, counted %v", next.loaded, next.results)
	}
}

func TestDebugHandler(t *testing.T) {
	factory := NewFactory()
	ask := func(method, query string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		factory.DebugHandler().ServeHTTP(answer, httptest.NewRequestWithContext(context.Background(), method, DebugPath+query, nil))
		return answer
	}
	if got := ask("GET", ""); got.Code != http.StatusNotFound || !strings.Contains(got.Body.String(), "no profile") {
		t.Errorf("without a profile: %d %s", got.Code, got.Body)
	}
	p := newProcess(fake.NewClientset())
	pod := queued("web", 0, 0, "0.5").Pod
	pod.CreationTimestamp = metav1.NewTime(start)
	_ = p.ledger.Observe(pod)
	factory.host.Store(&host{ledger: p.ledger})
	if got := ask("POST", ""); got.Code != http.StatusMethodNotAllowed || got.Header().Get("Allow") != "GET" {
		t.Errorf("POST: %d", got.Code)
	}
	for query, want := range map[string]string{"": "team/web  0.00/0.50", "?wide": "pending"} {
		if got := ask("GET", query); got.Code != http.StatusOK || !strings.Contains(got.Body.String(), want) {
			t.Errorf("%q: %d\n%s", query, got.Code, got.Body)
		}
	}
}

func TestLimit(t *testing.T) {
	l := &limit{most: 2}
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for _, step := range []struct {
		when, left int
		take       bool
	}{{0, 2, true}, {30, 1, true}, {59, 0, false}, {60, 1, true}, {89, 0, true}, {89, -1, false}, {120, 1, false}, {149, 2, false}} {
		if left := l.left(at(step.when)); left != step.left {
			t.Errorf("after %d s %d are left, want %d", step.when, left, step.left)
		}
		if step.take {
			l.take(at(step.when))
		}
	}
	l.take(at(150))
	l.giveBack(at(149))
	if left := l.left(at(150)); left != 1 {
		t.Errorf("%d are left after another one was given back", left)
	}
	if l.giveBack(at(150)); l.left(at(150)) != 2 {
		t.Error("what was given back counts")
	}
}

// TestSplitByBudget checks which pods violate a budget: those that are one too many.
func TestSplitByBudget(t *testing.T) {
	pod := func(namespace, name, app string) candidateVictim {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if app != "" {
			p.Labels = map[string]string{"app": app}
		}
		return candidateVictim{pod: p}
	}
	budget := func(app string, allowed int32, disrupted ...string) *policy.PodDisruptionBudget {
		b := &policy.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, Spec: policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}
		if app != "" {
			b.Spec.Selector.MatchLabels = map[string]string{"app": app}
		}
		b.Status.DisruptionsAllowed, b.Status.DisruptedPods = allowed, map[string]metav1.Time{}
		for _, name := range disrupted {
			b.Status.DisruptedPods[name] = metav1.Now()
		}
		return b
	}
	all := []candidateVictim{pod("team", "a", "web"), pod("team", "b", "web"), pod("team", "c", "web"), pod("team", "d", ""), pod("other", "e", "web"), pod("team", "f", "db")}
	names := func(victims []candidateVictim) string {
		var text strings.Builder
		for _, v := range victims {
			text.WriteString(v.pod.Name)
		}
		return text.String()
	}
	for name, test := range map[string]struct {
		budgets           []*policy.PodDisruptionBudget
		violating, others string
	}{
		"none":            {nil, "", "abcdef"},
		"one allowed":     {[]*policy.PodDisruptionBudget{budget("web", 1)}, "bc", "adef"},
		"counted already": {[]*policy.PodDisruptionBudget{budget("web", 1, "a", "b")}, "", "abcdef"},
		"selects nothing": {[]*policy.PodDisruptionBudget{budget("", 0)}, "", "abcdef"},
		"two":             {[]*policy.PodDisruptionBudget{budget("web", 2), budget("db", 0)}, "cf", "abde"},
	} {
		violating, others := splitByBudget(all, test.budgets)
		if names(violating) != test.violating || names(others) != test.others {
			t.Errorf("%s: %s and %s, want %s and %s", name, names(violating), names(others), test.violating, test.others)
		}
	}
}

// TestCost checks by what a node is chosen.
func TestCost(t *testing.T) {
	near, far, safe := judged(.9, 20), judged(.5, -100), judged(.5, 500)
	c := &cost{bySLO: map[float64]float64{}}
	for _, j := range []ledger.Judgement{near, far, safe} {
		c.add(&j, 30)
	}
	if c.bySLO[.9] != -10 || c.bySLO[.5] != -130 || c.all != -10-130+470 {
		t.Errorf("%+v", c)
	}
}

// TestCloseSaves checks that a scheduler that ends has saved its state when its plugin is
// closed, and that nothing happens when it is closed again, as another profile's plugin.
func TestCloseSaves(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		time.Sleep(50 * time.Millisecond) // an API server takes time
		return false, nil, nil
	})
	p := newProcess(client)
	p.tookOver = true
	p.end("a", 10)
	ctx, stop := context.WithCancel(t.Context())
	h := &host{store: p.store, ledger: p.ledger, stop: stop, stopped: make(chan struct{})}
	go h.keep(ctx)
	pl := &QosAware{host: h}
	for range 2 {
		if err := pl.Close(); err != nil {
			t.Fatal(err)
		}
		if p.results["success"] != 1 {
			t.Errorf("results are %v", p.results)
		}
	}
	if _, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "state", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

package qosaware

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// onePod is a pod that preempts others.
type onePod struct {
	preemption.ExecutorPreemptor
	pod *v1.Pod
}

func (o onePod) Type() string             { return "pod" }
func (o onePod) Pods() map[string]*v1.Pod { return map[string]*v1.Pod{o.pod.Name: o.pod} }
func (o onePod) Priority() int32          { return *o.pod.Spec.Priority }
func (o onePod) GetName() string          { return o.pod.Name }
func (o onePod) GetNamespace() string     { return o.pod.Namespace }

// on is a candidate node.
type on struct {
	preemption.Candidate
	node string
}

func (o on) Name() string { return o.node }

// TestCounted checks what is counted of preemptions and logged of them, and that the limit ends none half-way.
func TestCounted(t *testing.T) {
	now, failure := start, error(nil)
	counts := map[reason]int{}
	p := &preemptor{limit: &limit{most: 1}, now: func() time.Time { return now }, preempted: func(why reason) { counts[why]++ }}
	calls, logger := 0, ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	preempt := p.counted(func(context.Context, preemption.Candidate, preemption.ExecutorPreemptor, *v1.Pod, string) error {
		calls++
		return failure
	})
	by := onePod{pod: queued("by", 5, 0, "0.9").Pod}
	victim := func(name string, priority int32, want int, left int) {
		t.Helper()
		if err := preempt(klog.NewContext(t.Context(), logger), on{node: "n1"}, by, queued(name, priority, 0, "0.5").Pod, Name); !errors.Is(err, failure) {
			t.Errorf("%s: %v", name, err)
		}
		if calls != want || p.limit.left(now) != left {
			t.Errorf("%s: %d calls, %d are left; want %d and %d", name, calls, p.limit.left(now), want, left)
		}
	}
	p.choices.begin(by.pod.UID, now)
	p.choices.note(by.pod.UID, "a", largerSLO)
	p.choices.note(by.pod.UID, "b", inVain)
	failure = errors.New("not today")
	victim("a", 5, 1, 1)
	failure = nil
	victim("a", 5, 2, 0)
	victim("b", 5, 3, -1) // chosen together with a
	victim("c", 4, 4, -1) // upstream's rule has no limit
	p.choices.begin("other", now.Add(keepChoices-1))
	victim("b", 5, 5, -2)
	if want := (map[reason]int{largerSLO: 1, inVain: 2, byPriority: 1}); !maps.Equal(counts, want) {
		t.Errorf("counted %v, want %v", counts, want)
	}
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if n := strings.Count(text, "Preempted a pod"); n != 4 || !strings.Contains(text, `node="n1" reason="in-vain"`) || !strings.Contains(text, `/c" node="n1" reason="priority"`) {
		t.Errorf("%d preemptions in the log, want 4:\n%s", n, text)
	}
	p.choices.begin("other", now.Add(keepChoices))
	if why := p.choices.why(by.pod.UID, "b"); why != secure || len(p.choices.byPod) != 1 {
		t.Errorf("%q, %d are remembered", why, len(p.choices.byPod))
	}
	p.choices.begin("other", now)
	if why := p.choices.why("other", types.UID("a")); why != secure {
		t.Errorf("%q of what was never chosen", why)
	}
}

package qosaware

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// TestCounted checks what is counted of preemptions and logged of them, and that the limit ends none half-way.
func TestCounted(t *testing.T) {
	now, failure := start, error(nil)
	counts := map[reason]int{}
	p := &preemptor{limit: &limit{most: 1}, now: func() time.Time { return now }, preempted: func(why reason) { counts[why]++ }}
	calls, logger := 0, ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	preempt := func() error {
		calls++
		return failure
	}
	by := queued("by", 5, 0, "0.9").Pod
	victim := func(name string, priority int32, want int, left int) {
		t.Helper()
		if err := p.counted(klog.NewContext(t.Context(), logger), "n1", by, queued(name, priority, 0, "0.5").Pod, preempt); !errors.Is(err, failure) {
			t.Errorf("%s: %v", name, err)
		}
		if calls != want || p.limit.left(now) != left {
			t.Errorf("%s: %d calls, %d are left; want %d and %d", name, calls, p.limit.left(now), want, left)
		}
	}
	p.choices.begin(by.UID, now)
	p.choices.note(by.UID, "a", largerSLO)
	p.choices.note(by.UID, "b", inVain)
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
	if why := p.choices.why(by.UID, "b"); why != secure || len(p.choices.byPod) != 1 {
		t.Errorf("%q, %d are remembered", why, len(p.choices.byPod))
	}
	p.choices.begin("other", now)
	if why := p.choices.why("other", types.UID("a")); why != secure {
		t.Errorf("%q of what was never chosen", why)
	}
}

package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// of returns a pod of a workload of its own.
func of(workload string, created int, slo string) *v1.Pod {
	p := aPod(workload, created, ledger.AnnotationSLO, slo)
	p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "StatefulSet", workload, types.UID(workload)
	return p
}

// refused returns the workloads whose SLO is not admitted.
func refused(l *lab) (names []string) {
	for _, row := range l.Rows(false) {
		if row.Refused {
			names = append(names, row.Workload.Name)
		}
	}
	return names
}

// fill has ten pods of SLO .5 placed, a-0 to a-9, and makes ten of SLO .5 that wait, b-0 to b-9, each a
// second younger than the one before.
func fill(t *testing.T, l *lab) (waiting []*v1.Pod) {
	t.Helper()
	for i := range 20 {
		l.to(i)
		p := of(fmt.Sprintf("%c-%d", 'a'+i/10, i%10), i, "0.5")
		if i < 10 {
			p = bound(p, i)
		} else {
			waiting = append(waiting, p)
		}
		if err := l.Observe(p); err != nil {
			t.Fatal(err)
		}
	}
	return waiting
}

// TestAdmit checks who is admitted: everybody while nobody found no room, and then by age, what
// fits.
func TestAdmit(t *testing.T) {
	l := newLab()
	waiting := fill(t, l)
	if a := l.Admit(); a.Full || a.Places != 10 || a.Stated != 10 || a.Admitted != 10 || refused(l) != nil {
		t.Errorf("nobody found no room: %+v, refused %q", a, refused(l))
	}
	l.NoRoom(waiting[3].UID, false) // nobody's end would help
	if a := l.Admit(); a.Full {
		t.Errorf("a pod that fits nowhere whoever ends: %+v", a)
	}
	l.NoRoom(waiting[3].UID, true)
	// 19 of .5 are .95 of ten places: who is admitted stays as long as that.
	if a := l.Admit(); !a.Full || a.Admitted != 9.5 || !slices.Equal(refused(l), []string{"b-9"}) {
		t.Errorf("%+v, refused %q", a, refused(l))
	}
	late := of("late", 20, "0.1")
	_ = l.Observe(late)
	if j, _ := l.Judge(late, at(20)); !j.Refused {
		t.Error("what comes while there is no room for all is admitted before it is decided")
	}
	l.Admit()
	if got := refused(l); !slices.Equal(got, []string{"b-9", "late"}) {
		t.Errorf("refused %q", got)
	}
	// Who is not admitted yet gets .9 of the places.
	for i, want := range [][]string{{"b-9", "late"}, {"late"}, nil} {
		l.Remove(waiting[i])
		if l.Admit(); !slices.Equal(refused(l), want) {
			t.Errorf("%d less: refused %q, want %q", i+1, refused(l), want)
		}
	}
	for i, slo := range []string{"1", "0.1"} {
		_ = l.Observe(of("with-"+slo, 30+i, slo))
	}
	if a := l.Admit(); !slices.Equal(refused(l), []string{"with-1"}) {
		t.Errorf("the small one fits: %+v, refused %q", a, refused(l))
	}
}

// TestAdmitByPriority checks that priorities come before ages, if they count.
func TestAdmitByPriority(t *testing.T) {
	for _, respect := range []bool{true, false} {
		l := newLab(func(a *config.QosAwareArgs) { a.RespectPriority = respect })
		waiting := fill(t, l)
		important := of("important", 30, "1")
		important.Spec.Priority = ptr.To[int32](5)
		_ = l.Observe(important)
		l.NoRoom(waiting[0].UID, true)
		l.Admit()
		want := []string{"b-9", "important"}
		if respect {
			want = []string{"b-7", "b-8", "b-9"}
		}
		if got := refused(l); !slices.Equal(got, want) {
			t.Errorf("respectPriority %t: refused %q, want %q", respect, got, want)
		}
	}
}

// TestFirstIsAdmitted checks that with no place at all, and with one that asks for more than there
// is, somebody is admitted.
func TestFirstIsAdmitted(t *testing.T) {
	l := newLab()
	for i, name := range []string{"first", "second"} {
		p := of(name, i, "1")
		_ = l.Observe(p)
		l.NoRoom(p.UID, true)
	}
	l.to(5)
	if a := l.Admit(); a.Places != 0 || a.Admitted != 1 || !slices.Equal(refused(l), []string{"second"}) {
		t.Errorf("%+v, refused %q", a, refused(l))
	}
}

// TestPlaces checks what counts as a place, that a dip does not count at once, and for how long the
// cluster counts as full.
func TestPlaces(t *testing.T) {
	l := newLab()
	waiting := fill(t, l)
	nominated := waiting[0].DeepCopy()
	nominated.Status.NominatedNodeName = "n1"
	_ = l.Observe(nominated)
	l.Reserved(waiting[1].UID)
	l.NoRoom(waiting[2].UID, true)
	l.to(20)
	if a := l.Admit(); a.Places != 12 {
		t.Errorf("ten have a node, one is nominated, one is being bound: %+v", a)
	}
	for name, p := range l.objects {
		if strings.HasPrefix(name, "a-") && name != "a-0" {
			_ = l.Observe(deleted(p, 20))
		}
	}
	l.to(25)
	if a := l.Admit(); a.Places < 11.8 || a.Places >= 12 {
		t.Errorf("after a dip of 5 s: %+v", a)
	}
	l.to(25 + 3600)
	if a := l.Admit(); a.Places < 3 || a.Places > 3.1 {
		t.Errorf("an hour later: %+v", a)
	}
	l.Remove(waiting[2])
	l.to(25 + 3659)
	if a := l.Admit(); !a.Full {
		t.Errorf("within a minute: %+v", a)
	}
	l.to(25 + 3660)
	if a := l.Admit(); a.Full || refused(l) != nil {
		t.Errorf("after a minute in which nobody waited for room: %+v, refused %q", a, refused(l))
	}
}

// TestUntold checks what owners get to know: what has stayed for a while, once, and some at a time.
func TestUntold(t *testing.T) {
	l := newLab()
	waiting := fill(t, l)
	three := of("b-9", 25, "0.5") // waits, too
	three.Name, three.UID = "b-9-other", "b-9-other"
	_ = l.Observe(three)
	l.NoRoom(waiting[0].UID, true)
	told := func(when, most int) (what []string) {
		l.to(when)
		for _, d := range l.Untold(most) {
			what = append(what, fmt.Sprintf("%s %t %s", d.Workload.Name, d.Refused, strings.TrimSuffix(d.Pod.Name, "-other")))
		}
		return what
	}
	l.to(30)
	l.Admit()
	if got := told(59, 9); got != nil {
		t.Errorf("at once: %q", got)
	}
	if got := told(60, 0); got != nil {
		t.Errorf("none is asked for: %q", got)
	}
	if got, want := told(60, 9), []string{"b-9 true b-9"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := told(61, 9); got != nil {
		t.Errorf("again: %q", got)
	}
	for _, p := range waiting[:3] {
		l.Remove(p)
	}
	l.Admit()
	if got, want := told(100, 9), []string{"b-9 false b-9"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAgeStays checks that a workload is as old as the first of its pods, also after a restart, and that
// one that is made again is young.
func TestAgeStays(t *testing.T) {
	l := newLab()
	waiting := fill(t, l)
	l.to(100)
	l.Remove(l.objects["a-0"])
	successor := of("a-0", 100, "0.5")
	successor.Name, successor.UID = "a-0-2", "a-0-2"
	_ = l.Observe(successor)
	l.Remove(waiting[0])
	again := of("b-0", 100, "0.5")
	again.OwnerReferences[0].UID = "made again"
	_ = l.Observe(again)
	data := save(t, l)

	after := newLab()
	after.to(100)
	if _, err := after.Load(data, true); err != nil {
		t.Fatal(err)
	}
	for _, one := range []*lab{l, after} {
		if one == after {
			for name, p := range l.objects {
				if name != "a-0" && p != waiting[0] {
					_ = one.Observe(p)
				}
			}
		}
		one.NoRoom(successor.UID, true)
		one.to(101)
		one.Admit()
		if got := refused(one); len(got) == 0 || slices.Contains(got, "a-0") || !slices.Contains(got, "b-0") {
			t.Errorf("refused %q", got)
		}
	}
}

// TestBareAgain checks that a pod without an owner that is deleted and made again is another workload: the youngest,
// and without the time that it waited. A surplus is gone, too: it is urgent at once.
func TestBareAgain(t *testing.T) {
	for name, test := range map[string]struct {
		bound  bool
		before func(float64) bool // its metric
	}{
		"waited": {false, func(metric float64) bool { return metric < -30 }},
		"ran":    {true, func(metric float64) bool { return metric > 30 }},
	} {
		l := newLab()
		bare := func(uid string, created int) *v1.Pod {
			p := of("bare", created, "0.5")
			p.Name, p.UID, p.OwnerReferences = "bare", types.UID(uid), nil
			_ = l.Observe(p)
			return p
		}
		first := bare("first", 5)
		if test.bound {
			first = bound(first, 5)
			_ = l.Observe(first)
		}
		waiting := fill(t, l)
		decide := func() (refusedIs bool) {
			l.NoRoom(waiting[9].UID, true)
			l.Admit()
			return slices.Contains(refused(l), "bare")
		}
		l.to(100)
		before, _ := l.Judge(first, l.Now())
		if decide() || !test.before(before.Metric) {
			t.Errorf("%s: the first one is refused, or its metric is %v", name, before.Metric)
		}
		l.Remove(first)
		again := bare("again", 100)
		l.to(101)
		after, _ := l.Judge(again, l.Now())
		if !decide() || after.Metric < -30 || after.Metric > 0 {
			t.Errorf("%s: the second one is admitted, or its metric is %v", name, after.Metric)
		}
	}
}

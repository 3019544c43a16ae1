package ledger_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// lab is a Ledger with a clock and known owners.
type lab struct {
	*ledger.Ledger
	clock  *clocktesting.FakePassiveClock
	owners map[types.UID]ledger.Owner
	// objects are the last pods that the Ledger observed, by name.
	objects map[string]*v1.Pod
}

// Observe is that of the Ledger.
func (l *lab) Observe(p *v1.Pod) error {
	l.objects[p.Name] = p
	return l.Ledger.Observe(p)
}

func newLab(set ...func(*config.QosAwareArgs)) *lab {
	args := &config.QosAwareArgs{MeasureFrom: config.MeasureFromBound, AcceptablePreemptionOverhead: 1}
	for _, f := range set {
		f(args)
	}
	l := &lab{clock: clocktesting.NewFakePassiveClock(start), owners: map[types.UID]ledger.Owner{"rs": {Replicas: 2}}, objects: map[string]*v1.Pod{}}
	l.Ledger = ledger.New(ledger.Config{Args: args, Clock: l.clock, Owners: func(_ string, r metav1.OwnerReference) (ledger.Owner, bool) {
		owner, ok := l.owners[r.UID]
		return owner, ok
	}})
	return l
}

func (l *lab) to(seconds int) { l.clock.SetTime(at(seconds)) }

// aPod returns a pod of the ReplicaSet rs.
func aPod(name string, created int, annotations ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.NewTime(at(created)), Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}},
	}}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

func promised(name string, created int, slo string, measuring account.Measuring) *v1.Pod {
	return aPod(name, created, ledger.AnnotationSLO, slo, ledger.AnnotationMeasuring, string(measuring))
}

// bound returns the pod after it got a node.
func bound(p *v1.Pod, when int) *v1.Pod {
	p = p.DeepCopy()
	p.Spec.NodeName = "n1"
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(when))})
	return p
}

func ready(p *v1.Pod, when int, status v1.ConditionStatus) *v1.Pod {
	p = p.DeepCopy()
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == v1.PodReady {
			p.Status.Conditions[i].Status, p.Status.Conditions[i].LastTransitionTime = status, metav1.NewTime(at(when))
			return p
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(at(when))})
	return p
}

// deleted returns the pod after its deletion was asked for, with 30 s of grace.
func deleted(p *v1.Pod, when int) *v1.Pod {
	p = p.DeepCopy()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(at(when+30))), ptr.To[int64](30)
	return p
}

func measured(s account.Sums) [4]float64 {
	round := func(x float64) float64 { return math.Round(x*1e6) / 1e6 }
	return [4]float64{round(s.Running), round(s.Lost), round(s.Waiting), round(s.Binding)}
}

// caseA plays the published case A: two pods, one of which is preempted and has a successor.
func caseA(l *lab, slo string, measuring account.Measuring) (first, successor *v1.Pod) {
	first, second := promised("pod-1", 0, slo, measuring), promised("pod-2", 0, slo, measuring)
	observe := func(seconds int, p *v1.Pod) {
		l.to(seconds)
		if err := l.Observe(p); err != nil {
			panic(err)
		}
	}
	observe(0, first)
	observe(0, second)
	l.to(4)
	l.Reserved(second.UID)
	l.to(5)
	l.Bound(second.UID)
	second = bound(second, 5)
	observe(5, second)
	l.to(9)
	l.Reserved(first.UID)
	l.to(10)
	first = bound(first, 10)
	observe(10, first) // the informer may be faster than PostBind
	l.Bound(first.UID)
	observe(45, deleted(second, 45))
	successor = promised("successor", 45, slo, measuring)
	observe(45, successor)
	l.to(50)
	if l.Remove(deleted(second, 45)) {
		l.Finish(second.UID, false)
	}
	l.to(100)
	return first, successor
}

func TestGolden(t *testing.T) {
	inf := math.Inf(1)
	judged := func(name string, l *lab, p *v1.Pod, sums [4]float64, metric, overhead float64) {
		t.Helper()
		j, ok := l.Judge(p, l.Now())
		if !ok {
			t.Fatalf("%s: not judged", name)
		}
		if got := measured(j.Sums); got != sums {
			t.Errorf("%s: E D W B %v, want %v", name, got, sums)
		}
		if j.Metric != metric && math.Abs(j.Metric-metric) > 5e-5 {
			t.Errorf("%s: metric %v, want %v", name, j.Metric, metric)
		}
		if math.Abs(j.Overhead-overhead) > 5e-7 {
			t.Errorf("%s: overhead %v, want %v", name, j.Overhead, overhead)
		}
	}
	for _, test := range []struct {
		slo              string
		measuring        account.Measuring
		pending, running [4]float64
		metrics          [2]float64 // of the pending and of the running pod
		overheads        [2]float64
	}{
		{".5", account.Average, [4]float64{130, 0, 68, 2}, [4]float64{130, 0, 68, 2}, [2]float64{inf, 29.3333}, [2]float64{.015152, .015152}},
		{".9", account.Average, [4]float64{130, 0, 68, 2}, [4]float64{130, 0, 68, 2}, [2]float64{-56.2222, -56.2222}, [2]float64{.015152, .015152}},
		{".5", account.Aggregate, [4]float64{90, 40, 68, 2}, [4]float64{0, 130, 68, 2}, [2]float64{-20.6667, -200.6667}, [2]float64{.318182, 1}},
		{".9", account.Aggregate, [4]float64{90, 40, 68, 2}, [4]float64{0, 130, 68, 2}, [2]float64{-100.6667, -200.6667}, [2]float64{.318182, 1}},
		{".5", account.Concurrent, [4]float64{70, 60, 68, 2}, [4]float64{70, 60, 68, 2}, [2]float64{-60.6667, -60.6667}, [2]float64{.015152, .015152}},
		{".9", account.Concurrent, [4]float64{70, 60, 68, 2}, [4]float64{70, 60, 68, 2}, [2]float64{-122.8889, -122.8889}, [2]float64{.015152, .015152}},
		{".5", account.Independent, [4]float64{0, 0, 55, 0}, [4]float64{90, 0, 9, 1}, [2]float64{-57.4, 79}, [2]float64{0, .010989}},
		{".9", account.Independent, [4]float64{0, 0, 55, 0}, [4]float64{90, 0, 9, 1}, [2]float64{-57.4, -1}, [2]float64{0, .010989}},
	} {
		l := newLab()
		first, successor := caseA(l, test.slo, test.measuring)
		name := fmt.Sprintf("A, %s, %s", test.slo, test.measuring)
		judged(name+", pending", l, successor, test.pending, test.metrics[0], test.overheads[0])
		judged(name+", running", l, first, test.running, test.metrics[1], test.overheads[1])
	}
	for _, measuring := range account.Measurings {
		l := newLab()
		p := promised("b", 0, ".8", measuring)
		_ = l.Observe(p)
		l.to(30)
		judged("B, "+string(measuring), l, p, [4]float64{0, 0, 30, 0}, -32.4, 0)

		l = newLab()
		pods := []*v1.Pod{promised("c-1", 0, ".5", measuring), promised("c-2", 0, ".5", measuring)}
		for i, p := range pods {
			l.to(0)
			_ = l.Observe(p)
			l.to(1)
			l.Reserved(p.UID)
			l.to(2)
			l.Bound(p.UID)
			pods[i] = bound(p, 2)
			_ = l.Observe(pods[i])
		}
		l.to(102)
		switch measuring {
		case account.Average:
			judged("C", l, pods[0], [4]float64{200, 0, 2, 2}, inf, .009901)
		case account.Concurrent:
			judged("C", l, pods[0], [4]float64{200, 0, 2, 2}, 98, .009901)
		case account.Independent:
			judged("C", l, pods[0], [4]float64{100, 0, 1, 1}, 97, .009901)
		}
	}
}

func TestRead(t *testing.T) {
	defaults := &config.QosAwareArgs{AcceptablePreemptionOverhead: .3}
	legacy := &config.QosAwareArgs{AcceptablePreemptionOverhead: .3, LegacyAnnotations: true}
	everybody := &config.QosAwareArgs{AcceptablePreemptionOverhead: .3, DefaultSLO: ptr.To(.7)}
	none := account.Terms{}
	terms := func(slo float64, measuring account.Measuring, overhead float64) account.Terms {
		return account.Terms{SLO: slo, Measuring: measuring, Overhead: overhead}
	}
	for name, test := range map[string]struct {
		args        *config.QosAwareArgs
		annotations []string
		want        account.Terms
		wrong       string // part of the error
	}{
		"nothing":            {args: defaults, want: none},
		"all":                {args: defaults, annotations: []string{ledger.AnnotationSLO, "0.95", ledger.AnnotationMeasuring, "aggregate", ledger.AnnotationOverhead, ".1"}, want: terms(.95, account.Aggregate, .1)},
		"slo only":           {args: defaults, annotations: []string{ledger.AnnotationSLO, "1"}, want: terms(1, account.Average, .3)},
		"0":                  {args: defaults, annotations: []string{ledger.AnnotationSLO, "0"}, want: none, wrong: "above 0"},
		"1.5":                {args: defaults, annotations: []string{ledger.AnnotationSLO, "1.5"}, want: none, wrong: `"1.5"`},
		"negative":           {args: defaults, annotations: []string{ledger.AnnotationSLO, "-0.5"}, want: none, wrong: "-0.5"},
		"NaN":                {args: defaults, annotations: []string{ledger.AnnotationSLO, "NaN"}, want: none, wrong: "NaN"},
		"infinite":           {args: defaults, annotations: []string{ledger.AnnotationSLO, "+Inf"}, want: none, wrong: "Inf"},
		"hexadecimal":        {args: defaults, annotations: []string{ledger.AnnotationSLO, "0x1p-1"}, want: none, wrong: "0x1p-1"},
		"exponent":           {args: defaults, annotations: []string{ledger.AnnotationSLO, "5e-1"}, want: none, wrong: "5e-1"},
		"percent":            {args: defaults, annotations: []string{ledger.AnnotationSLO, "95%"}, want: none, wrong: "95%"},
		"empty":              {args: defaults, annotations: []string{ledger.AnnotationSLO, ""}, want: none, wrong: `""`},
		"two points":         {args: defaults, annotations: []string{ledger.AnnotationSLO, "0..5"}, want: none, wrong: "0..5"},
		"a megabyte":         {args: defaults, annotations: []string{ledger.AnnotationSLO, strings.Repeat("0", 1<<20)}, want: none, wrong: "1048576 bytes"},
		"more digits":        {args: defaults, annotations: []string{ledger.AnnotationSLO, "0.5555555555555555555555"}, want: none, wrong: "0.555"},
		"unknown measuring":  {args: defaults, annotations: []string{ledger.AnnotationSLO, ".5", ledger.AnnotationMeasuring, "sum"}, want: terms(.5, account.Average, .3), wrong: "average independent"},
		"wrong overhead":     {args: defaults, annotations: []string{ledger.AnnotationSLO, ".5", ledger.AnnotationOverhead, "2"}, want: terms(.5, account.Average, .3), wrong: "from 0 to 1"},
		"overhead 0":         {args: defaults, annotations: []string{ledger.AnnotationSLO, ".5", ledger.AnnotationOverhead, "0"}, want: terms(.5, account.Average, 0)},
		"published, not on":  {args: defaults, annotations: []string{"slo", ".5"}, want: none},
		"published":          {args: legacy, annotations: []string{"slo", ".5", "qosMeasuring", "concurrent", "acceptablePreemptionOverhead", "1"}, want: terms(.5, account.Concurrent, 1)},
		"both":               {args: legacy, annotations: []string{"slo", ".5", ledger.AnnotationSLO, ".6"}, want: terms(.6, account.Average, .3)},
		"all by default":     {args: everybody, want: terms(.7, account.Average, .3)},
		"wrong, default set": {args: everybody, annotations: []string{ledger.AnnotationSLO, "x"}, want: none, wrong: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := ledger.NewReader(test.args).Read(aPod("p", 0, test.annotations...))
			if s.Terms != test.want {
				t.Errorf("%+v, want %+v", s.Terms, test.want)
			}
			if (err == nil) != (test.wrong == "") || err != nil && (!strings.Contains(err.Error(), test.wrong) || len(err.Error()) > 300) {
				t.Errorf("error %v, want ... %s ...", err, test.wrong)
			}
		})
	}
	for name, spare := range map[string]func(*v1.Pod){
		"kube-system":     func(p *v1.Pod) { p.Namespace = metav1.NamespaceSystem },
		"system-critical": func(p *v1.Pod) { p.Spec.Priority = ptr.To[int32](2_000_000_000) },
	} {
		p := aPod("p", 0, ledger.AnnotationSLO, ".5")
		spare(p)
		if s, err := ledger.NewReader(everybody).Read(p); s.Terms != none || err != nil {
			t.Errorf("%s: %+v, %v", name, s.Terms, err)
		}
	}
}

// TestNewestDecides checks that of different statements of one workload's pods those of the
// newest count, in any order of events, also after an annotation was changed.
func TestNewestDecides(t *testing.T) {
	old, young := promised("old", 0, ".5", account.Average), promised("young", 10, ".9", account.Average)
	for name, order := range map[string][]*v1.Pod{"forward": {old, young}, "backward": {young, old}} {
		l := newLab()
		for _, p := range order {
			_ = l.Observe(p)
		}
		l.to(20)
		if j, _ := l.Judge(old, l.Now()); j.Terms.SLO != .9 {
			t.Errorf("%s: SLO %v", name, j.Terms.SLO)
		}
		changed := old.DeepCopy()
		changed.Annotations[ledger.AnnotationSLO] = ".1"
		_ = l.Observe(changed)
		if j, _ := l.Judge(old, l.Now()); j.Terms.SLO != .9 {
			t.Errorf("%s: an older pod changed the SLO to %v", name, j.Terms.SLO)
		}
		changed = young.DeepCopy()
		changed.Annotations[ledger.AnnotationSLO] = ".2"
		_ = l.Observe(changed)
		if j, _ := l.Judge(old, l.Now()); j.Terms.SLO != .2 {
			t.Errorf("%s: SLO %v after it was changed", name, j.Terms.SLO)
		}
	}
}

// TestWithdrawn checks that a pod leaves whose annotation is removed or becomes wrong.
func TestWithdrawn(t *testing.T) {
	l := newLab()
	p := promised("p", 0, ".5", account.Average)
	_ = l.Observe(p)
	p = p.DeepCopy()
	p.Annotations[ledger.AnnotationSLO] = "7"
	if err := l.Observe(p); err == nil {
		t.Error("no error")
	}
	if _, ok := l.Judge(p, l.Now()); ok {
		t.Error("still judged")
	}
	if rows := l.Rows(true); len(rows) != 1 || len(rows[0].Pods) != 0 {
		t.Errorf("%+v", rows)
	}
}

// TestRestated checks that what a pod got before it withdrew its SLO counts once if it states one again, and that it
// is no younger then.
func TestRestated(t *testing.T) {
	l := newLab()
	p := bound(promised("p", 0, ".5", account.Average), 0)
	for i := range 3 {
		l.to(1000 * i)
		_ = l.Observe(p)
		l.to(1000*i + 500)
		withdrawn := p.DeepCopy()
		delete(withdrawn.Annotations, ledger.AnnotationSLO)
		_ = l.Observe(withdrawn)
	}
	l.to(3000)
	_ = l.Observe(p)
	l.to(3100)
	j, ok := l.Judge(p, l.Now())
	if got, want := measured(j.Sums), [4]float64{1600, 0, 0, 0}; !ok || got != want {
		t.Errorf("%v, want %v: three times 500 s, and 100 s", got, want)
	}
	if j.Ran != 3100*time.Second {
		t.Errorf("it ran %s", j.Ran)
	}
	gone := bound(promised("q", 3100, ".5", account.Average), 3100)
	_ = l.Observe(gone)
	withdrawn := gone.DeepCopy()
	delete(withdrawn.Annotations, ledger.AnnotationSLO)
	_ = l.Observe(withdrawn)
	l.Remove(withdrawn)
	l.to(3200)
	_ = l.Observe(gone) // another one for the Ledger
	if j, _ = l.Judge(gone, l.Now()); measured(j.Sums)[0] != 1700+100 {
		t.Errorf("%v", measured(j.Sums))
	}
}

// TestRestatedAlone checks that nothing is lost of pods whose workload has no sums of what they got.
func TestRestatedAlone(t *testing.T) {
	for name, p := range map[string]*v1.Pod{
		"independent":   promised("p", 0, ".5", account.Independent),
		"without owner": promised("p", 0, ".5", account.Average),
	} {
		l := newLab()
		if name == "without owner" {
			p.OwnerReferences = nil
		}
		p = bound(p, 0)
		_ = l.Observe(p)
		l.to(1000)
		withdrawn := p.DeepCopy()
		delete(withdrawn.Annotations, ledger.AnnotationSLO)
		_ = l.Observe(withdrawn)
		_ = l.Observe(p)
		l.to(1100)
		if j, ok := l.Judge(p, l.Now()); !ok || measured(j.Sums) != [4]float64{1100, 0, 0, 0} {
			t.Errorf("%s: %v", name, measured(j.Sums))
		}
	}
}

// TestGated checks that pods with scheduling gates are not waiting: nobody can make a workload urgent with
// them.
func TestGated(t *testing.T) {
	l := newLab()
	running := bound(promised("running", 0, ".6", account.Average), 0)
	_ = l.Observe(running)
	gated := promised("gated", 0, ".6", account.Average)
	gated.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/for-ever"}}
	_ = l.Observe(gated)
	l.to(1000)
	j, _ := l.Judge(running, l.Now())
	if got, want := measured(j.Sums), [4]float64{1000, 0, 0, 0}; got != want {
		t.Errorf("with a gated pod %v, want %v", got, want)
	}
	gated = gated.DeepCopy()
	gated.Spec.SchedulingGates = nil
	_ = l.Observe(gated)
	l.to(1010)
	j, _ = l.Judge(running, l.Now())
	if got, want := measured(j.Sums), [4]float64{1010, 0, 10, 0}; got != want {
		t.Errorf("10 s after the gate opened %v, want %v", got, want)
	}
}

// TestOwners checks that a pod belongs to the root of its owners, however late they are
// known, and that namespaces and objects that were made again are kept apart.
func TestOwners(t *testing.T) {
	l := newLab()
	delete(l.owners, "rs")
	p := promised("p", 0, ".5", account.Average)
	_ = l.Observe(p)
	workload := func(p *v1.Pod) ledger.Key {
		j, _ := l.Judge(p, l.Now())
		return j.Workload
	}
	if got, want := workload(p), (ledger.Key{Namespace: "team", Kind: "ReplicaSet", Name: "web", UID: "rs"}); got != want {
		t.Errorf("owner not known: %+v", got)
	}
	l.owners["rs"] = ledger.Owner{Owner: &metav1.OwnerReference{Kind: "Deployment", Name: "app", UID: "deployment"}}
	l.owners["deployment"] = ledger.Owner{Replicas: 3}
	orphans := l.Orphans("rs")
	if len(orphans) != 1 || orphans[0] != (types.NamespacedName{Namespace: "team", Name: "p"}) {
		t.Fatalf("orphans %v", orphans)
	}
	_ = l.Observe(p)
	if got, want := workload(p), (ledger.Key{Namespace: "team", Kind: "Deployment", Name: "app", UID: "deployment"}); got != want {
		t.Errorf("owner known: %+v", got)
	}
	if len(l.Rows(false)) != 1 || len(l.Orphans("rs")) != 0 {
		t.Errorf("rows %+v, orphans %v", l.Rows(false), l.Orphans("rs"))
	}
	elsewhere := promised("p", 0, ".5", account.Average)
	elsewhere.Namespace, elsewhere.UID = "other", "another-uid"
	again := promised("again", 10, ".5", account.Average)
	again.OwnerReferences[0].UID = "rs-made-again"
	l.owners["rs-made-again"] = ledger.Owner{}
	_ = l.Observe(elsewhere)
	_ = l.Observe(again)
	if rows := l.Rows(false); len(rows) != 3 {
		t.Errorf("rows %+v", rows)
	}
}

// TestController checks the published annotation that names the workload.
func TestController(t *testing.T) {
	l := newLab(func(a *config.QosAwareArgs) { a.LegacyAnnotations = true })
	for i, namespace := range []string{"team", "team", "other"} {
		p := aPod(fmt.Sprint("p", i), 0, "slo", ".5", "controller", "mine")
		p.Namespace, p.OwnerReferences = namespace, nil
		_ = l.Observe(p)
	}
	rows := l.Rows(true)
	if len(rows) != 2 || rows[0].Workload.String() != "other/mine" || rows[1].Workload.String() != "team/mine" || len(rows[1].Pods) != 2 {
		t.Errorf("%+v", rows)
	}
}

// TestMoved has pods leave a workload for another one by their annotation, and come back. What
// they leave is forgotten like a workload whose pods ended.
func TestMoved(t *testing.T) {
	l := newLab(func(a *config.QosAwareArgs) { a.LegacyAnnotations = true })
	ended, p := promised("ended", 0, ".5", account.Average), promised("p", 0, ".5", account.Average)
	_ = l.Observe(ended)
	_ = l.Observe(p)
	l.to(10)
	l.Remove(ended)
	moved := p.DeepCopy()
	moved.Annotations["controller"] = "mine"
	check := func(p *v1.Pod, want ...string) {
		t.Helper()
		_ = l.Observe(p)
		l.Forget()
		var got []string
		for _, row := range l.Rows(true) {
			got = append(got, fmt.Sprint(row.Workload.Name, len(row.Pods)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check(moved, "mine1", "web0")
	check(p, "web1")
	check(moved, "mine1", "web0")
	l.to(10 + 7*86400)
	check(moved, "mine1")
}

// TestReady checks that with measureFrom: Ready a pull is waiting, and what interruptions cost.
func TestReady(t *testing.T) {
	l := newLab(func(a *config.QosAwareArgs) { a.MeasureFrom = config.MeasureFromReady })
	p := promised("p", 0, ".5", account.Average)
	check := func(when int, want [4]float64) {
		t.Helper()
		l.to(when)
		if j, _ := l.Judge(p, l.Now()); measured(j.Sums) != want {
			t.Errorf("after %d s: %v, want %v", when, measured(j.Sums), want)
		}
	}
	_ = l.Observe(p)
	p = bound(p, 10)
	_ = l.Observe(p)
	check(30, [4]float64{0, 0, 30, 0})
	p = ready(p, 40, v1.ConditionTrue)
	l.to(40)
	_ = l.Observe(p)
	check(60, [4]float64{20, 0, 40, 0})
	p = ready(p, 70, v1.ConditionFalse)
	l.to(72)
	_ = l.Observe(p)
	check(80, [4]float64{30, 0, 50, 0})
	p = ready(p, 90, v1.ConditionTrue)
	l.to(90)
	_ = l.Observe(p)
	check(100, [4]float64{40, 0, 60, 0})
}

// TestClockOfNode has a node whose clock is an hour ahead: its pod is ready from when that is seen, and
// not from then on again and again.
func TestClockOfNode(t *testing.T) {
	for _, measuring := range account.Measurings {
		l := newLab(func(a *config.QosAwareArgs) { a.MeasureFrom = config.MeasureFromReady })
		l.owners["rs"] = ledger.Owner{Replicas: 1}
		p := bound(promised("p", 0, ".5", measuring), 10)
		l.to(20)
		p = ready(p, 3620, v1.ConditionTrue)
		for _, when := range []int{20, 50, 3000} {
			l.to(when)
			_ = l.Observe(p)
		}
		row := func() [4]float64 { return measured(l.Rows(false)[0].Sums) }
		if j, _ := l.Judge(p, l.Now()); j.Ran != 2980*time.Second || row() != [4]float64{2980, 0, 20, 0} {
			t.Errorf("%s: ran %v, %v", measuring, j.Ran, row())
		}
		_ = l.Observe(ready(p, 6600, v1.ConditionFalse))
		l.to(3100)
		want := [4]float64{2980, 0, 120, 0}
		if measuring == account.Aggregate {
			want = [4]float64{0, 2980, 120, 0}
		}
		if row() != want {
			t.Errorf("%s, not ready any more: %v, want %v", measuring, row(), want)
		}
		_ = l.Observe(deleted(p, 9999))
		l.to(3200)
		if got := row(); got != want {
			t.Errorf("%s, its end is asked for: %v, want %v", measuring, got, want)
		}
	}
}

// TestBrokenPods has pods that have nodes and are not ready: their debt stops growing, another one of the
// same workload is served as if it stated nothing, and when they run after all it is urgent again.
func TestBrokenPods(t *testing.T) {
	for _, window := range []time.Duration{0, 24 * time.Hour} {
		l := newLab(func(a *config.QosAwareArgs) {
			a.MeasureFrom, a.Window = config.MeasureFromReady, metav1.Duration{Duration: window}
		})
		pods := make([]*v1.Pod, 3)
		for i := range pods {
			pods[i] = bound(promised(fmt.Sprint("p", i), 0, ".9", account.Average), 0)
			_ = l.Observe(pods[i])
		}
		l.to(600)
		next := promised("next", 600, ".9", account.Average)
		_ = l.Observe(next)
		if j, _ := l.Judge(next, l.Now()); j.Refused {
			t.Error("refused after ten minutes: they may only be starting")
		}
		l.to(3600)
		early, _ := l.Judge(pods[0], l.Now())
		if got, most := early.Sums.Waiting, 3*600+3000.; got > most || got < .9*most || !early.Refused {
			t.Errorf("window %v: three wait for an hour, for ten minutes of which the scheduler is to blame, and one for 3000 s: %+v", window, early.Sums)
		}
		if j, _ := l.Judge(next, l.Now()); !j.Refused {
			t.Error("another one would be broken, too, and is not refused")
		}
		l.to(7200)
		for i := range pods {
			pods[i] = ready(pods[i], 7200, v1.ConditionTrue)
			_ = l.Observe(pods[i])
		}
		l.to(7300)
		if j, _ := l.Judge(next, l.Now()); j.Refused || math.Abs(j.Sums.Running-300) > 1 || j.Sums.Waiting > 3*600+6700 {
			t.Errorf("window %v: they run after all: %+v", window, j)
		}
	}
}

// TestFlapping has a pod of two be ready and not ready, in turns, for hours: each second counts
// once, of Concurrent only those in which both are ready, the account does not grow, and the
// pod does not stay young.
func TestFlapping(t *testing.T) {
	const turns, end = 2000, 2000 * 5
	for _, measuring := range account.Measurings {
		l := newLab(func(a *config.QosAwareArgs) { a.MeasureFrom = config.MeasureFromReady })
		steady := ready(bound(promised("steady", 0, ".5", measuring), 0), 0, v1.ConditionTrue)
		flapping := bound(promised("flapping", 0, ".5", measuring), 0)
		_ = l.Observe(steady)
		var early uint64
		for i := range turns { // ready for 3 of 5 s; some changes are observed twice
			for _, change := range []struct {
				when   int
				status v1.ConditionStatus
			}{{5 * i, v1.ConditionTrue}, {5*i + 3, v1.ConditionFalse}} {
				l.to(change.when)
				flapping = ready(flapping, change.when, change.status)
				for range 1 + (i+1)%3/2 {
					_ = l.Observe(flapping)
				}
			}
			if i == turns/4 {
				early = live(l)
			}
		}
		l.to(end)
		ran, alone := 3.*turns, 0.
		if measuring == account.Concurrent { // the steady one's seconds beside an unready one are lost
			alone = 2 * turns
		}
		idle := account.MaxIdle.Seconds() // more does not count
		want := [4]float64{end + ran - alone, alone, idle, 0}
		got := measured(l.Rows(false)[0].Sums)
		if measuring == account.Aggregate { // what an unready pod did is lost as long as it is not ready
			want[0], want[1] = end, ran
		}
		if got != want {
			t.Errorf("%s: %v, want %v", measuring, got, want)
		}
		if late := live(l); late > early+64<<10 {
			t.Errorf("%s: the account grew from %d to %d bytes", measuring, early, late)
		}
		if j, _ := l.Judge(flapping, l.Now()); j.Ran != end*time.Second {
			t.Errorf("%s: it began to run %v ago", measuring, j.Ran)
		}
	}
}

// live returns the bytes of the heap that are in use: the least of some readings, because
// others use it, too.
func live(l *lab) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, m.HeapAlloc)
	}
	runtime.KeepAlive(l)
	return least
}

// TestSucceeded checks that of an aggregate workload succeeded pods count and others do not.
func TestSucceeded(t *testing.T) {
	l := newLab()
	for i, succeeded := range []bool{true, false} {
		p := bound(promised(fmt.Sprint("p", i), 0, ".5", account.Aggregate), 0)
		l.to(0)
		_ = l.Observe(p)
		l.to(10)
		if !l.Remove(p) {
			t.Fatal("nobody asks how the pod ended")
		}
		l.to(20) // the answer took some time
		l.Finish(p.UID, succeeded)
	}
	if rows := l.Rows(false); len(rows) != 1 || measured(rows[0].Sums) != [4]float64{10, 10, 0, 0} {
		t.Errorf("%+v", rows)
	}
}

// TestGainsNothing checks which pods run in vain.
func TestGainsNothing(t *testing.T) {
	l := newLab()
	l.owners["rs"] = ledger.Owner{Replicas: 3}
	pods := make([]*v1.Pod, 3)
	for i := range pods {
		pods[i] = promised(fmt.Sprint("p", i), 0, ".5", account.Concurrent)
		_ = l.Observe(pods[i])
	}
	for i := range 2 {
		pods[i] = bound(pods[i], 0)
		_ = l.Observe(pods[i])
	}
	l.to(10)
	if j, _ := l.Judge(pods[0], l.Now()); !j.GainsNothing || measured(j.Sums) != [4]float64{0, 20, 10, 0} {
		t.Errorf("2 of 3 run: %+v", j)
	}
	if j, _ := l.Judge(pods[2], l.Now()); j.GainsNothing {
		t.Error("a pending pod gains nothing")
	}
	nominated := pods[2].DeepCopy()
	nominated.Status.NominatedNodeName = "n1"
	_ = l.Observe(nominated)
	if j, _ := l.Judge(pods[0], l.Now()); j.GainsNothing {
		t.Error("2 of 3 run, and a node is held for the third")
	}
	_ = l.Observe(pods[2])
	if j, _ := l.Judge(pods[0], l.Now()); !j.GainsNothing {
		t.Error("it is not held any more")
	}
	// The Deployment is scaled: what was lost is lost.
	l.owners["rs"] = ledger.Owner{Replicas: 2}
	if j, _ := l.Judge(pods[0], l.Now()); j.GainsNothing {
		t.Error("2 of 2 run")
	}
	l.to(20)
	if j, _ := l.Judge(pods[0], l.Now()); measured(j.Sums) != [4]float64{20, 20, 20, 0} {
		t.Errorf("after scaling: %v", measured(j.Sums))
	}
}

// TestScaledKeepsThePast scales a concurrent workload, and has the new pod be seen before
// anybody asks: in both ways to state how many there shall be, what was stays what it was.
func TestScaledKeepsThePast(t *testing.T) {
	for name, states := range map[string]bool{"replicas": true, "nobody states how many": false} {
		l := newLab()
		if !states {
			l.owners["rs"] = ledger.Owner{}
		}
		pods := make([]*v1.Pod, 3)
		for i := range pods[:2] {
			pods[i] = bound(promised(fmt.Sprint("p", i), 0, ".5", account.Concurrent), 0)
			_ = l.Observe(pods[i])
		}
		l.to(10)
		if states {
			l.owners["rs"] = ledger.Owner{Replicas: 3}
		}
		pods[2] = promised("p2", 10, ".5", account.Concurrent)
		_ = l.Observe(pods[2])
		check := func(when int, want [4]float64) {
			t.Helper()
			l.to(when)
			if j, _ := l.Judge(pods[0], l.Now()); measured(j.Sums) != want {
				t.Errorf("%s, after %d s: %v, want %v", name, when, measured(j.Sums), want)
			}
		}
		check(10, [4]float64{20, 0, 0, 0})
		check(15, [4]float64{20, 10, 5, 0})
		if states {
			l.owners["rs"] = ledger.Owner{Replicas: 2}
		} else {
			l.Remove(deleted(pods[2], 15))
		}
		l.to(15)
		l.Rows(false)
		if states {
			check(20, [4]float64{30, 10, 10, 0})
		} else {
			check(20, [4]float64{30, 10, 5, 0})
		}
	}
}

// event is something that an informer may report.
type event struct {
	when int
	do   func(*lab)
}

// history makes up pods of a workload, and returns what happens to each of them, in order, and the
// objects that are left at the end. Interrupted means that a pod was ready and is not any more:
// then the object does not show since when it ran.
func history(random *rand.Rand, measuring account.Measuring, end int) (events [][]event, left []*v1.Pod, interrupted bool) {
	for i := range 1 + random.IntN(8) {
		p := promised(fmt.Sprint("p", i), random.IntN(end), ".5", measuring)
		var own []event
		add := func(when int, p *v1.Pod) {
			own = append(own, event{when, func(l *lab) { _ = l.Observe(p) }})
		}
		created := int(p.CreationTimestamp.Sub(start).Seconds())
		add(created, p)
		if when := created + random.IntN(end); when < end {
			p = bound(p, when)
			add(when, p)
			if when := when + random.IntN(end); when < end {
				p = ready(p, when, v1.ConditionTrue)
				add(when, p)
			}
		}
		last := own[len(own)-1].when
		if when := last + random.IntN(end); when < end && random.IntN(2) == 0 {
			p = deleted(p, when)
			add(when, p)
			last = when
		}
		if when := last + random.IntN(end/5); when < end && condition(p, v1.PodReady) && random.IntN(2) == 0 {
			p = ready(p, when, v1.ConditionFalse)
			add(when, p)
			interrupted = true
		}
		events, left = append(events, own), append(left, p)
	}
	return events, left, interrupted
}

func condition(p *v1.Pod, kind v1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == kind })
}

// TestNotReadyBecauseItEnds has a pod be deleted and become not ready, in one update or two: it
// ran until its deletion was asked for.
func TestNotReadyBecauseItEnds(t *testing.T) {
	for _, measuring := range []account.Measuring{account.Average, account.Concurrent} {
		for _, both := range []bool{false, true} {
			l := newLab(func(a *config.QosAwareArgs) { a.MeasureFrom = config.MeasureFromReady })
			l.owners["rs"] = ledger.Owner{Replicas: 1}
			p := ready(bound(promised("p", 0, ".5", measuring), 0), 10, v1.ConditionTrue)
			l.to(10)
			_ = l.Observe(p)
			p = deleted(p, 40)
			if !both {
				l.to(40)
				_ = l.Observe(p)
			}
			l.to(60)
			_ = l.Observe(ready(p, 60, v1.ConditionFalse))
			l.to(100)
			if got := measured(l.Rows(false)[0].Sums); got != [4]float64{30, 0, 10, 0} {
				t.Errorf("%s, in one update: %v: %v", measuring, both, got)
			}
		}
	}
}

// anySettings makes up how a workload and a Ledger measure; set sets the latter.
func anySettings(random *rand.Rand) (measuring account.Measuring, measureFrom string, window metav1.Duration, set func(*config.QosAwareArgs)) {
	measuring = account.Measurings[random.IntN(4)]
	window = metav1.Duration{Duration: time.Duration(random.IntN(2)) * 10 * time.Minute}
	measureFrom = []string{config.MeasureFromReady, config.MeasureFromBound}[random.IntN(2)]
	return measuring, measureFrom, window, func(a *config.QosAwareArgs) { a.MeasureFrom, a.Window = measureFrom, window }
}

// TestAnyOrder checks that the account after any order of the pods' events, and with some of
// them not seen, is that which a scheduler makes of the objects that it finds at the end;
// and that running, lost, waiting and binding are the age of all pods.
func TestAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	const end = 600 // less than account.MaxIdle, which is not saved
	for range 2000 {
		measuring, measureFrom, window, set := anySettings(random)
		events, left, interrupted := history(random, measuring, end)
		found, lived := newLab(set), newLab(set)
		for len(events) > 0 {
			i := random.IntN(len(events))
			if e := events[i][0]; len(events[i]) == 1 || random.IntN(3) > 0 { // the last one is always seen
				lived.to(max(int(lived.Now().Sub(start).Seconds()), e.when))
				e.do(lived)
			}
			if events[i] = events[i][1:]; len(events[i]) == 0 {
				events = append(events[:i], events[i+1:]...)
			}
		}
		lived.to(end)
		found.to(end)
		age := 0.
		for _, p := range left {
			_ = found.Observe(p)
			until := at(end)
			if p.DeletionTimestamp != nil {
				until = p.DeletionTimestamp.Add(-30 * time.Second)
			}
			age += account.Window(window.Duration).Weigh(p.CreationTimestamp.Time, until, at(end))
		}
		a, b := lived.Rows(false), found.Rows(false)
		if len(a) != 1 || len(b) != 1 {
			t.Fatalf("rows %+v and %+v", a, b)
		}
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6*max(1, age) }
		for i := range 4 {
			if interrupted && measureFrom == config.MeasureFromReady {
				break
			}
			x, y := measured(a[0].Sums)[i], measured(b[0].Sums)[i]
			if !near(x, y) {
				t.Fatalf("%s, %s, window %v: lived %v, found %v", measuring, measureFrom, window.Duration, a[0].Sums, b[0].Sums)
			}
		}
		if !near(a[0].Sums.Total(), age) {
			t.Fatalf("%s, %s, window %v: %v, of an age of %v", measuring, measureFrom, window.Duration, a[0].Sums, age)
		}
	}
}

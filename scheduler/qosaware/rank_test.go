package qosaware

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// TestRank checks who is spared first of the pods that may be preempted.
func TestRank(t *testing.T) {
	p := &preemptor{rules: someRules()}
	victim := func(name string, priority int32, started int, j *ledger.Judgement) candidateVictim {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pod.Spec.Priority = ptr.To(priority)
		pod.Status.StartTime = ptr.To(metav1.NewTime(start.Add(time.Duration(started) * time.Second)))
		return candidateVictim{pod: pod, priority: priority, judged: j}
	}
	of := func(slo, metric float64) *ledger.Judgement { j := judged(slo, metric); return &j }
	vain := of(.9, -50)
	vain.GainsNothing, vain.Ran = true, time.Minute
	assembled := of(.9, -50) // its siblings are on their way
	assembled.GainsNothing = true
	want := []candidateVictim{
		victim("important", 5, 9, of(.1, 1000)),
		victim("important, in vain", 5, 1, vain),
		victim("being assembled", 0, 9, assembled),
		victim("urgent, large", 0, 9, of(.9, 20)),
		victim("urgent, behind", 0, 9, of(.5, -20)),
		victim("urgent", 0, 9, of(.5, 20)),
		victim("none, early", 0, 1, nil),
		victim("none, late", 0, 2, nil),
		victim("can wait", 0, 9, of(.9, 100)),
		victim("can wait long", 0, 9, of(.9, 1000)),
		victim("in vain", 0, 1, vain),
		victim("unimportant", -1, 1, nil),
		victim("important, ends soon", 5, 1, of(.9, -20)),
	}
	want[len(want)-1].endsSoon = true
	for seed := range uint64(20) {
		got := slices.Clone(want)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, func(a, b candidateVictim) int { return p.rank(&a, &b) })
		for i := range got {
			if got[i].pod.Name != want[i].pod.Name {
				t.Fatalf("%d is %q, want %q", i, got[i].pod.Name, want[i].pod.Name)
			}
		}
	}
}

// TestChooseNode checks on which node pods are preempted.
func TestChooseNode(t *testing.T) {
	vain := func(slo, metric float64) ledger.Judgement {
		j := judged(slo, metric)
		j.GainsNothing, j.Ran = true, time.Minute
		return j
	}
	known := map[string]ledger.Judgement{
		"in vain": vain(.9, -500), "in vain too": vain(.5, -100),
		"urgent": judged(.9, 10), "behind": judged(.5, -50), "secure": judged(.5, 100), "more secure": judged(.9, 1000),
	}
	p := &preemptor{
		rules: someRules(), now: func() time.Time { return start },
		judge: func(pod *v1.Pod, _ time.Time) (ledger.Judgement, bool) { j, ok := known[pod.Name]; return j, ok },
	}
	node := func(violations int64, priority int32, names ...string) *extenderv1.Victims {
		v := &extenderv1.Victims{NumPDBViolations: violations}
		for _, name := range names {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
			pod.Spec.Priority = ptr.To(priority)
			v.Pods = append(v.Pods, pod)
		}
		return v
	}
	// The first is preferred to each of those after it.
	order := []*extenderv1.Victims{
		node(0, -1, "none"),
		node(0, 0, "in vain"),
		node(0, 0, "in vain", "in vain too"),
		node(0, 0, "more secure"),
		node(0, 0, "more secure", "in vain too"),
		node(0, 0, "secure"),
		node(0, 0, "more secure", "behind"),
		node(0, 0, "urgent"),
		node(0, 5, "secure"),
		node(1, -1, "in vain"),
	}
	for i, better := range order {
		for _, worse := range order[i+1:] {
			nodes := map[string]*extenderv1.Victims{"better": better, "worse": worse}
			chosen := ""
			for _, score := range p.OrderedScoreFuncs(t.Context(), nodes) {
				if a, b := score("better"), score("worse"); a != b {
					chosen = map[bool]string{true: "better", false: "worse"}[a > b]
					break
				}
			}
			if chosen != "better" {
				t.Errorf("%q is chosen, not %q over %q", chosen, namesOf(better), namesOf(worse))
			}
		}
	}
	if scores := p.OrderedScoreFuncs(t.Context(), map[string]*extenderv1.Victims{"n": node(0, 0, "none")}); scores != nil {
		t.Error("nobody has an SLO, and upstream does not choose")
	}
}

func namesOf(v *extenderv1.Victims) (names []string) {
	for _, pod := range v.Pods {
		names = append(names, pod.Name)
	}
	return names
}

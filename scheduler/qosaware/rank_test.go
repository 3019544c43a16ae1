package qosaware

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/book"
)

// TestRank checks who is spared first of the pods that may be preempted.
func TestRank(t *testing.T) {
	p := &preemptor{rules: rulesOf(config.OverloadShare)}
	victim := func(name string, priority int32, started int, j *book.Judgement) candidateVictim {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pod.Spec.Priority = ptr.To(priority)
		pod.Status.StartTime = ptr.To(metav1.NewTime(start.Add(time.Duration(started) * time.Second)))
		return candidateVictim{pod: pod, priority: priority, judged: j}
	}
	of := func(slo, metric float64) *book.Judgement { j := judged(slo, metric); return &j }
	vain := of(.9, -50)
	vain.GainsNothing = true
	want := []candidateVictim{
		victim("important", 5, 9, of(.1, 1000)),
		victim("important, in vain", 5, 1, vain),
		victim("urgent, large", 0, 9, of(.9, 20)),
		victim("urgent, behind", 0, 9, of(.5, -20)),
		victim("urgent", 0, 9, of(.5, 20)),
		victim("none, early", 0, 1, nil),
		victim("none, late", 0, 2, nil),
		victim("can wait", 0, 9, of(.9, 100)),
		victim("can wait long", 0, 9, of(.9, 1000)),
		victim("in vain", 0, 1, vain),
		victim("unimportant", -1, 1, nil),
	}
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

package layerlocality

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// assignment is a pod of a group on a node.
type assignment struct {
	pod  *v1.Pod
	node string
}

func (a assignment) GetPod() *v1.Pod     { return a.pod }
func (a assignment) GetNodeName() string { return a.node }

// A group goes to the rack that has to pull least for all of it: a layer counts once a node, however many pods need it.
func TestScorePlacement(t *testing.T) {
	s := newSuite(t, args(), nodes("a1", "a2", "b1", "b2", "c1", "c2"))
	for _, n := range []string{"a1", "a2"} { // rack a has the base
		s.agent.Sink.SetImages("test", n, []index.Image{nodeImage("quay.io/base:1", layers{"base": 900})})
	}
	s.agent.Sink.SetImages("test", "b1", []index.Image{nodeImage("quay.io/a:1", layers{"base": 900, "top": 100})})
	place := func(rack string, image string, on ...string) *fwk.PodGroupAssignments {
		p := &fwk.PodGroupAssignments{Placement: &fwk.Placement{Name: rack}}
		for i, node := range on {
			p.ProposedAssignments = append(p.ProposedAssignments, assignment{pod(fmt.Sprint(rack, i), image), node})
		}
		return p
	}
	for name, test := range map[string]struct {
		placements []*fwk.PodGroupAssignments
		want       map[string]int64
	}{
		"spread over two nodes": {
			[]*fwk.PodGroupAssignments{
				place("a", "quay.io/a:1", "a1", "a1", "a2", "a2"), place("b", "quay.io/a:1", "b1", "b1", "b2", "b2"), place("c", "quay.io/a:1", "c1", "c1", "c2", "c2"),
			}, map[string]int64{"a": 90, "b": 50, "c": 0}, // 200, 1,000 and 2,000 MB
		},
		"packed on one": {
			[]*fwk.PodGroupAssignments{
				place("a", "quay.io/a:1", "a1", "a1", "a1"), place("b", "quay.io/a:1", "b1", "b1", "b1"), place("c", "quay.io/a:1", "c1", "c1", "c1"),
			}, map[string]int64{"a": 90, "b": 100, "c": 0},
		},
		"nothing is known": {
			[]*fwk.PodGroupAssignments{place("a", "quay.io/new:1", "a1"), place("b", "quay.io/new:1", "b1")}, map[string]int64{"a": 100, "b": 100},
		},
	} {
		cycle := framework.NewCycleState()
		all, status := s.framework.RunPlacementScorePlugins(s.ctx, cycle, &framework.PodGroupInfo{}, test.placements)
		if !status.IsSuccess() {
			t.Fatalf("%s: %v", name, status)
		}
		for _, score := range all {
			if got, want := score.TotalScore, test.want[score.Placement.Name]; got < want-1 || got > want+1 {
				t.Errorf("%s: rack %s has %d points, want %d", name, score.Placement.Name, got, want)
			}
		}
	}
	// A small image counts little, whichever rack has it.
	s.agent.Sink.SetImages("test", "c1", []index.Image{nodeImage("quay.io/small:1", layers{"small": 5})})
	all, _ := s.framework.RunPlacementScorePlugins(s.ctx, framework.NewCycleState(), &framework.PodGroupInfo{}, []*fwk.PodGroupAssignments{place("a", "quay.io/small:1", "a1"), place("c", "quay.io/small:1", "c1")})
	for _, score := range all {
		if score.TotalScore < 94 {
			t.Errorf("5 MB: rack %s has %d points", score.Placement.Name, score.TotalScore)
		}
	}
}

// BenchmarkGroup places a pod alone, and one of a pod group: on trial, undone, and placed.
func BenchmarkGroup(b *testing.B) {
	var all []*v1.Node
	for i := range 5000 {
		all = append(all, node(fmt.Sprintf("n%04d", i)))
	}
	s := newSuite(b, args(), all)
	var infos []fwk.NodeInfo
	for i, n := range all {
		s.agent.Sink.SetImages("test", n.Name, []index.Image{nodeImage("quay.io/a:1", layers{"base": 300, "top": int64(i % 7)})})
		if i < 500 {
			info := framework.NewNodeInfo()
			info.SetNode(n)
			infos = append(infos, info)
		}
	}
	for _, group := range []bool{false, true} {
		b.Run(fmt.Sprintf("group=%t", group), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := pod(fmt.Sprint("q", i), "quay.io/a:1")
				state := framework.NewCycleState()
				if group {
					state.SetPodGroupSchedulingCycle(framework.NewCycleState())
				}
				s.plugin.PreFilter(s.ctx, state, p, nil)
				s.plugin.PreScore(s.ctx, state, p, infos)
				for _, n := range infos {
					s.plugin.Score(s.ctx, state, p, n)
				}
				s.plugin.Reserve(s.ctx, state, p, "n0001")
				if group {
					s.plugin.Unreserve(s.ctx, state, p, "n0001")
					state.SetPodGroupSchedulingCycle(nil)
					s.plugin.Reserve(s.ctx, state, p, "n0001")
				}
				s.index().Release(p.UID)
			}
		})
	}
}

//go:build !kubernetes1.35

package layerlocality

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// scoreGroups enables the plugin for placements of pod groups.
func scoreGroups(plugins *kubescheduler.Plugins) {
	plugins.PlacementScore = kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{{Name: Name, Weight: 1}}}
}

// signatureOf returns the signature of a pod.
func signatureOf(s *suite, pod *v1.Pod) fwk.PodSignature { return s.framework.SignPod(s.ctx, pod) }

// joinGang makes a pod one of a group.
func joinGang(pod *v1.Pod) {
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
}

// assignment is a pod of a group on a node.
type assignment struct {
	fwk.ProposedAssignment
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
			p.ProposedAssignments = append(p.ProposedAssignments, assignment{pod: pod(fmt.Sprint(rack, i), image), node: node})
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
		all, status := scorePlacements(s, test.placements)
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
	all, _ := scorePlacements(s, []*fwk.PodGroupAssignments{place("a", "quay.io/small:1", "a1"), place("c", "quay.io/small:1", "c1")})
	for _, score := range all {
		if score.TotalScore < 94 {
			t.Errorf("5 MB: rack %s has %d points", score.Placement.Name, score.TotalScore)
		}
	}
}

// The snapshot keeps the generation when it assumes a pod of a group (backend/cache/snapshot.go AssumePod).
func TestPodGroup(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2", "n3", "n4"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	var infos []fwk.NodeInfo
	var n1 *framework.NodeInfo
	for _, n := range s.nodes {
		info := framework.NewNodeInfo()
		info.SetNode(n)
		infos = append(infos, info)
		if n.Name == "n1" {
			n1 = info
		}
	}
	score := func(state fwk.CycleState) int64 {
		s.plugin.PreScore(s.ctx, state, pod("p", "quay.io/a:1"), infos)
		got, _ := s.plugin.Score(s.ctx, state, pod("p"), n1)
		s.plugin.Reserve(s.ctx, state, pod("p", "quay.io/a:1"), "none")
		return got
	}
	score(groupCycle())
	before := score(framework.NewCycleState()) // of a pod before the group, whose memory is used again
	old := n1.Generation
	info, _ := framework.NewPodInfo(on(pod("member", "quay.io/a:1"), "n1", "2"))
	n1.AddPodInfo(info)
	n1.Generation = old // as Snapshot.AssumePod does
	after := score(groupCycle())
	uncached := &cycle{}
	var w index.Measurement
	s.plugin.profile.Measure(s.plugin.profile.Wanted(pod("p", "quay.io/a:1")), &w)
	uncached.measured = w
	uncached.rate(infos, locality.RequestOf(pod("p")), s.plugin.profile)
	if want := uncached.score(n1); after != want {
		t.Errorf("score %d before, %d after a member of the group took 20%% of n1; without the cache %d", before, after, want)
	}
}

// What a pod of a group lacks is counted when it is reserved for good: it is reserved more than once.
func TestSavedMetricOfGroups(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2"))
	bytes := func(of string) float64 {
		v, _ := testutil.GetCounterMetricValue(s.plugin.metrics.missing.WithLabelValues("default-scheduler", of))
		return v
	}
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"a": 200})})
	chosen := bytes("chosen")
	state := groupCycle()
	p := pod("g", "quay.io/a:1")
	s.scoresIn(state, p, s.nodes)
	s.plugin.Reserve(s.ctx, state, p, "n2")
	s.plugin.Unreserve(s.ctx, state, p, "n2")
	s.plugin.Reserve(s.ctx, state, p, "n2")
	if got := bytes("chosen") - chosen; got != 0 {
		t.Errorf("a pod of a group, which is reserved more than once: %.0f bytes counted", got)
	}
	s.plugin.Unreserve(s.ctx, state, p, "n2")
	state.SetPodGroupSchedulingCycle(nil) // as kube-scheduler does before it reserves for good
	s.plugin.Reserve(s.ctx, state, p, "n2")
	if got := bytes("chosen") - chosen; got != 200*mb {
		t.Errorf("a pod of a group, reserved for good: %.0f bytes counted", got)
	}
	remembered := s.factory.placements.Of("ns", "g").Placements
	if len(remembered) != 1 || remembered[0].Mean == nil || remembered[0].FeasibleNodes != 2 || remembered[0].Chosen.MissingBytes != 200*mb || remembered[0].Best == nil || remembered[0].Best.Node != "n1" {
		t.Errorf("a pod of a group, reserved for good: %+v", remembered)
	}
}

// groupCycle is the state of a pod that is scheduled in the cycle of its group.
func groupCycle() *framework.CycleState {
	state := framework.NewCycleState()
	state.SetPodGroupSchedulingCycle(framework.NewCycleState())
	return state
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

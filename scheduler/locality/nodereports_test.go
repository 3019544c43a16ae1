package locality_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// nodeReports has the source of reports report images of n1.
func (s *stock) nodeReports(uid types.UID, images ...index.Image) {
	s.agent.Sink.SetReport("test", "n1", &locality.NodeReport{UID: uid, Fresh: true, Images: images})
}

// withUID has n1, with that UID, list images.
func (s *stock) withUID(uid types.UID, images ...[]string) {
	s.t.Helper()
	n := fixture.Node("n1")
	n.UID = uid
	n.Status.NodeInfo.OperatingSystem, n.Status.NodeInfo.Architecture = amd64.OS, amd64.Architecture
	for _, names := range images {
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: names, SizeBytes: 100 * mb})
	}
	s.set(n)
}

func reported(name string, layers ...index.Layer) index.Image {
	return index.Image{Names: []string{name}, Layers: layers}
}

// The report of an agent stands for NodeStatus as long as it is fresh, also what it leaves out.
func TestAgentsReplaceNodeStatus(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set(sha("listed"), every(layer("base", 100), layer("listed", 7)))
	source.Set("quay.io/wanted:1", every(layer("base", 100), layer("agent", 50)))
	s.withUID("u1", []string{at("quay.io/listed", "listed")})
	s.expect("NodeStatus", "n1", "quay.io/wanted:1", 100, 150)

	s.nodeReports("u1", reported("quay.io/other:1", layer("agent", 50)))
	s.expect("the agent", "n1", "quay.io/wanted:1", 50, 150)
	if by := s.tracker.Provenance("n1", []imageref.Canonical{"quay.io/other:1"}); by != locality.FromLayers {
		t.Errorf("known by %q", by)
	}
	s.withUID("u1", []string{at("quay.io/listed", "listed")}, []string{"quay.io/new:1"})
	s.expect("NodeStatus changed meanwhile", "n1", "quay.io/wanted:1", 50, 150)
	source.Set(sha("listed"), every(layer("base", 101), layer("listed", 7)))
	s.expect("a manifest changed meanwhile", "n1", "quay.io/wanted:1", 50, 150)
	source.Set(sha("listed"), every(layer("base", 100), layer("listed", 7)))

	s.agent.Sink.SetReport("test", "n1", &locality.NodeReport{UID: "u1"})
	s.expect("the agent is gone", "n1", "quay.io/wanted:1", 100, 150)
	s.nodeReports("u1", reported("quay.io/other:1", layer("agent", 50)), reported("quay.io/base:1", layer("base", 100)))
	s.expect("the agent is back", "n1", "quay.io/wanted:1", 150, 150)
	s.agent.Sink.SetReport("test", "n1", nil)
	s.expect("its object is gone", "n1", "quay.io/wanted:1", 100, 150)
	if counts := s.tracker.ImagesOf("n1"); counts[locality.FromLayers] != 0 || counts[locality.FromManifest] != 1 || counts[locality.FromName] != 1 {
		t.Errorf("%v", counts)
	}
}

// Images without layers in the report are resolved as those of NodeStatus are.
func TestAgentsNameImages(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	s.withUID("u1")
	s.nodeReports("u1", index.Image{Canonical: []imageref.Canonical{sha("bare")}}, reported("quay.io/other:1", layer("agent", 50)))
	source.Set("quay.io/wanted:1", every(layer("base", 100), layer("agent", 50)))
	s.expect("unknown", "n1", "quay.io/wanted:1", 50, 150)
	source.Set(sha("bare"), every(layer("base", 100)))
	s.expect("resolved", "n1", "quay.io/wanted:1", 150, 150)
	source.Set(sha("bare"))
	s.expect("unknown again", "n1", "quay.io/wanted:1", 50, 150)
}

// A report may come before its Node, and be of another Node of that name.
func TestAgentsAndNodes(t *testing.T) {
	s := newStock(t, &fixture.FollowedImages{})
	source := s.source
	source.Set("quay.io/wanted:1", every(layer("base", 100), layer("agent", 50)))
	image := reported("quay.io/other:1", layer("agent", 50))
	s.nodeReports("u1", image)
	s.withUID("u1")
	s.expect("the Node came", "n1", "quay.io/wanted:1", 50, 150)

	// The Node was made again: another machine, without a report.
	s.withUID("u2")
	s.expect("another Node", "n1", "quay.io/wanted:1", 0, 150)
	s.nodeReports("u1", image)
	s.expect("a late report of the Node before", "n1", "quay.io/wanted:1", 0, 150)
	s.nodeReports("u2", image)
	s.expect("its own report", "n1", "quay.io/wanted:1", 50, 150)

	// The report of the next Node comes before the event that the Node was made again.
	next := fixture.Node("n1")
	next.UID = "u3"
	next.Status.NodeInfo.OperatingSystem, next.Status.NodeInfo.Architecture = amd64.OS, amd64.Architecture
	must(t, s.store.Update(next))
	s.nodeReports("u3", image)
	s.set(next)
	s.expect("a report before the event", "n1", "quay.io/wanted:1", 50, 150)

	// Deleted, and back with its UID: a restored etcd, or a list that was old.
	s.handler.OnDelete(next)
	if got := s.has("n1", "quay.io/wanted:1"); got.Present != 0 {
		t.Errorf("the Node is gone: %+v", got)
	}
	s.handler.OnAdd(next, false)
	s.expect("it is back", "n1", "quay.io/wanted:1", 50, 150)

	// Deleted, and its report late.
	must(t, s.store.Delete(next))
	s.handler.OnDelete(next)
	delete(s.nodes, "n1")
	s.nodeReports("u3", image)
	s.withUID("u4")
	s.expect("a report of a Node that is gone", "n1", "quay.io/wanted:1", 0, 150)
}

// An agent reports how its node uses layers again and whether it joins downloads. That holds on
// when the agent is gone.
func TestAgentsReportHowLayersAreUsed(t *testing.T) {
	for _, everywhere := range []string{config.ReuseByDigest, config.ReuseInChains} {
		source := &fixture.FollowedImages{}
		s := newStock(t, source, func(a *configv1.LayerLocalityArgs) { a.LayerReuse = &everywhere })
		source.Set(sha("listed"), ordered(layer("base", 10), layer("shared", 100)))
		source.Set("quay.io/wanted:1", ordered(layer("another", 20), layer("shared", 100)))
		s.withUID("u1", []string{at("quay.io/listed", "listed")})
		for _, inChains := range []bool{true, false} {
			for _, fresh := range []bool{true, false} {
				what := fmt.Sprintf("%s, chains %t, fresh %t", everywhere, inChains, fresh)
				layers := []index.Layer{layer("base", 10), layer("shared", 100)}
				if inChains {
					layers = index.Chain(layers)
				}
				s.agent.Sink.SetReport("test", "n1", &locality.NodeReport{UID: "u1", Fresh: fresh, InChains: inChains, JoinsDownloads: ptr.To(inChains), Images: []index.Image{reported("quay.io/held:1", layers...)}})
				present := int64(100)
				if inChains {
					present = 0
				}
				s.expect(what, "n1", "quay.io/wanted:1", present, 120)
				if got := s.profile.JoinsDownloads(s.nodes["n1"]); got != inChains {
					t.Errorf("%s: joins downloads is %t", what, got)
				}
			}
		}
	}
}

// A node without a report is one to look after only beside nodes with one, if it is Ready, may have
// an agent, and does not state layers itself; one whose agent is silent, if it is Ready.
func TestSilent(t *testing.T) {
	s := newStock(t, &fixture.FollowedImages{})
	ready := func(name string, change ...func(*v1.Node)) {
		n := fixture.Node(name)
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse}, {Type: v1.NodeReady, Status: v1.ConditionTrue}}
		for _, f := range change {
			f(n)
		}
		s.set(n)
	}
	expect := func(what string, want, wantStale int) {
		t.Helper()
		if missing, stale := s.tracker.Silent(); missing != want || stale != wantStale {
			t.Errorf("%s: %d and %d nodes, want %d and %d", what, missing, stale, want, wantStale)
		}
	}
	image := v1.ContainerImage{Names: []string{"quay.io/a:1"}, SizeBytes: 100 * mb}
	ready("n1")
	ready("n2", func(n *v1.Node) { n.Status.Images = []v1.ContainerImage{image} })
	ready("not-ready", func(n *v1.Node) { n.Status.Conditions[1].Status = v1.ConditionUnknown })
	ready("never-ready", func(n *v1.Node) { n.Status.Conditions = nil })
	ready("windows", func(n *v1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" })
	expect("no agents", 0, 0)
	s.nodeReports("uid-n1")
	expect("an agent on n1", 1, 0)
	s.agent.Sink.SetReport("test", "n1", &locality.NodeReport{UID: "uid-n1"})
	expect("stale", 1, 1)
	ready("n1", func(n *v1.Node) { n.Status.Conditions[1].Status = v1.ConditionUnknown })
	expect("its node is down", 1, 0)
	ready("n1")
	expect("its node is back", 1, 1)
	s.nodeReports("of another")
	expect("of a Node that is gone", 0, 0)
	s.nodeReports("uid-n1")
	ready("n3")
	expect("another node", 2, 0)
	if nodestatus.Layers {
		nodestatus.SetLayers(&image, []index.Layer{layer("a", 100)})
		ready("n2", func(n *v1.Node) { n.Status.Images = []v1.ContainerImage{image} })
		expect("one states layers", 1, 0)
	}
}

// An agent lists all images: nothing is remembered that it does not list.
func TestAgentsListAll(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source, func(a *configv1.LayerLocalityArgs) { a.NodeStatusMaxImages = ptr.To[int32](1) })
	source.Set(sha("small"), every(layer("base", 100)))
	source.Set("quay.io/wanted:1", every(layer("base", 100), layer("own", 5)))
	s.withUID("u1", []string{at("quay.io/small", "small")})
	s.withUID("u1", []string{at("quay.io/large", "large")})
	s.expect("remembered", "n1", "quay.io/wanted:1", 100, 105)
	s.nodeReports("u1", reported("quay.io/large:1", layer("large", 500)))
	s.expect("the agent does not list it", "n1", "quay.io/wanted:1", 0, 105)
	if counts := s.tracker.ImagesOf("n1"); counts[locality.FromUse] != 0 {
		t.Errorf("%v", counts)
	}
}

// Without the argument, no agent is listened to.
func TestAgentsSwitchedOff(t *testing.T) {
	s := newStock(t, &fixture.FollowedImages{}, func(a *configv1.LayerLocalityArgs) { a.NodeLayers = ptr.To(false) })
	if s.agent.Sink != nil {
		t.Error("the source was started")
	}
}

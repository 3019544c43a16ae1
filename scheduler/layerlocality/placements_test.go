package layerlocality

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// place schedules a pod on a node, whatever the scores are.
func (s *suite) place(p *v1.Pod, node string, feasible ...*v1.Node) {
	s.t.Helper()
	state := framework.NewCycleState()
	if len(feasible) > 1 {
		s.scoresIn(state, p, feasible)
	} else {
		s.preferred(state, p)
	}
	if status := s.plugin.Reserve(s.ctx, state, p, node); !status.IsSuccess() {
		s.t.Fatal(status)
	}
}

func (s *suite) remembered(name string) placements.Answer {
	s.t.Helper()
	recorder := httptest.NewRecorder()
	s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?placements=ns/"+name, nil))
	var answer placements.Answer
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || recorder.Code != http.StatusOK {
		s.t.Fatalf("%d %s, %v", recorder.Code, recorder.Body, err)
	}
	return answer
}

// The debug endpoint shows what was known when a pod was placed.
func TestPlacements(t *testing.T) {
	s := newSuite(t, args(), nodes("n1", "n2", "n3"))
	s.agent.Sink.SetImages("test", "n1", []index.Image{nodeImage("quay.io/a:1", layers{"base": 300, "top": 100})})
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/b:1", layers{"base": 300})})

	s.place(pod("overruled", "quay.io/a:1"), "n2", s.nodes...)
	got := s.remembered("overruled")
	if len(got.Placements) != 1 || got.Remembered != 1 {
		t.Fatalf("%+v", got)
	}
	p := got.Placements[0]
	if want := (placements.Weights{Node: "n2", Score: 75, TotalBytes: 400 * mb, PresentBytes: 300 * mb, MissingBytes: 100 * mb}); p.Chosen != want {
		t.Errorf("chosen %+v, want %+v", p.Chosen, want)
	}
	if want := (placements.Weights{Node: "n1", Score: 100, TotalBytes: 400 * mb, PresentBytes: 400 * mb}); p.Best == nil || *p.Best != want {
		t.Errorf("best %+v, want %+v", p.Best, want)
	}
	if p.Mean == nil || int64(p.Mean.MissingBytes) != 500*mb/3 || int(p.Mean.Score) != 175/3 || p.FeasibleNodes != 3 || p.Known != "layers" || p.Profile != "default-scheduler" || p.UID != "overruled" {
		t.Errorf("%+v, mean %+v", p, p.Mean)
	}

	// The chosen one is the best one if it scores as much.
	s.place(pod("best", "quay.io/b:1"), "n2", s.nodes...)
	if p := s.remembered("best").Placements[0]; p.Best == nil || p.Best.Node != "n2" || *p.Best != p.Chosen {
		t.Errorf("%+v", p)
	}
	// No node has anything of it, and nothing is known of it.
	s.place(pod("unknown", "quay.io/unknown:1"), "n3", s.nodes...)
	if p := s.remembered("unknown").Placements[0]; p.Best != nil || p.Known != "unknown" || p.Mean == nil || p.Chosen.MissingBytes != 0 {
		t.Errorf("%+v", p)
	}
	// No node has anything of it, but its manifest is known: all of them lack all of it.
	s.registry["quay.io/nowhere:1"] = manifest(index.Layer{Digest: digest("nowhere"), Size: 70 * mb})
	s.place(pod("nowhere", "quay.io/nowhere:1"), "n3", s.nodes...)
	if p := s.remembered("nowhere").Placements[0]; p.Mean == nil || p.Mean.MissingBytes != 70*mb || p.Chosen.MissingBytes != 70*mb || p.Known != "layers" {
		t.Errorf("%+v, mean %+v", p, p.Mean)
	}
	// So many pods wait for it on n3 that it does not count there; it is arriving all the same.
	for i := range 30 {
		s.place(pod(fmt.Sprintf("waiting-%d", i), "quay.io/nowhere:1"), "n3", s.nodes...)
	}
	if p := s.remembered("waiting-29").Placements[0]; p.Chosen.ArrivingBytes != 70*mb {
		t.Errorf("%+v", p)
	}
	// There was one node to choose from. Scores of the pod before do not show.
	s.place(pod("alone", "quay.io/b:1"), "n1", s.nodes[0])
	if p := s.remembered("alone").Placements[0]; p.Best != nil || p.Mean != nil || p.FeasibleNodes != 1 || p.Chosen.Score != 0 || p.Chosen.PresentBytes != 300*mb {
		t.Errorf("%+v", p)
	}
	// A pod that was not bound was not placed.
	s.place(pod("undone", "quay.io/b:1"), "n1", s.nodes...)
	s.plugin.Unreserve(s.ctx, framework.NewCycleState(), pod("undone", "quay.io/b:1"), "n1")
	if got := s.remembered("undone"); len(got.Placements) != 0 {
		t.Errorf("%+v", got)
	}

	recorder := httptest.NewRecorder()
	s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?savings", nil))
	var saved placements.Savings
	if err := json.Unmarshal(recorder.Body.Bytes(), &saved); err != nil || len(saved.Profiles) != 1 || saved.Profiles[0].Pods != 35 || saved.Profiles[0].MissingBytes != 170*mb {
		t.Errorf("%s, %v", recorder.Body, err)
	}
	recorder = httptest.NewRecorder()
	s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?placements=noslash", nil))
	if recorder.Code != http.StatusBadRequest || !strings.Contains(recorder.Body.String(), "want NAMESPACE/NAME") {
		t.Errorf("%d %s", recorder.Code, recorder.Body)
	}
}

// BenchmarkPlace is all that the plugin does for a pod that is placed, with a full memory of
// placements and without one. The nodes are as many as kube-scheduler scores of 5,000.
func BenchmarkPlace(b *testing.B) {
	names := make([]string, 500)
	for i := range names {
		names[i] = fmt.Sprintf("node-%03d", i)
	}
	s := newSuite(b, args(), nodes(names...))
	infos := make([]fwk.NodeInfo, len(names))
	for i, name := range names {
		images := make([]index.Image, 50)
		for j := range images {
			n := (i + j*j) % 200 // each is on a quarter of the nodes
			image := layers{}
			for l := range int64(12) {
				image[fmt.Sprintf("layer-%d-%d", l, int64(n)/(1+l))] = 1 + l
			}
			images[j] = nodeImage(fmt.Sprintf("registry.example.com/app-%d:v1", n), image)
		}
		s.agent.Sink.SetImages("test", name, images)
		info := framework.NewNodeInfo()
		info.SetNode(s.nodes[i])
		infos[i] = info
	}
	p := pod("p", "registry.example.com/app-7:v1")
	memory := placements.New(time.Now())
	for i := range placements.Most {
		memory.Add(placements.Placement{Namespace: "ns", Name: fmt.Sprint("pod-", i), Chosen: placements.Weights{Node: names[i%len(names)]}})
	}
	for _, c := range []struct {
		name   string
		memory *placements.Memory
	}{{"remembered", memory}, {"not", nil}} {
		b.Run(c.name, func(b *testing.B) {
			s.plugin.placements = c.memory
			for b.Loop() {
				state := framework.NewCycleState()
				s.plugin.PreFilter(s.ctx, state, p, infos)
				if status := s.plugin.PreScore(s.ctx, state, p, infos); !status.IsSuccess() {
					b.Fatal(status)
				}
				for _, info := range infos {
					s.plugin.Score(s.ctx, state, p, info)
				}
				s.plugin.Reserve(s.ctx, state, p, names[3])
				s.plugin.profile.Release(p.UID)
			}
		})
	}
}

// The least that is known of any image counts for the pod.
func TestLeastKnown(t *testing.T) {
	all := []index.Known{index.ByLayers, index.ByName, index.Arriving, index.Unknown}
	for i, want := range all {
		images := slices.Clone(all[:i+1])
		slices.Reverse(images)
		if got := least(images); got != want {
			t.Errorf("%v: %s, want %s", images, got, want)
		}
	}
	if got := least(nil); got != "" {
		t.Errorf("no images: %q", got)
	}
}

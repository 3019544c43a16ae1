package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// The plugins and weights with which kube-scheduler must score.
func TestPolicyWeights(t *testing.T) {
	for _, test := range []struct {
		policy       string
		score        string
		want, images int32 // weights of score and of ImageLocality
		arguments    string
	}{
		{"default", "", 0, 1, ""},
		{"imagelocality-full", imageLocality, 100, 100, ""},
		{"image-name", imageName, recommendedWeight, 0, ""},
		{"prototype", prototypeName, recommendedWeight, 0, ""},
		{"lrscheduler", lrScheduler, 2, 1, ""},
		{"lrscheduler-live", lrScheduler, 2, 1, ""},
		{"layerlocality", "LayerLocality", recommendedWeight, 0, ""},
		{"layerlocality:weight=7:loadPenalty=3", "LayerLocality", 7, 0, "loadPenalty: 3"},
		{"layerlocality:steps=40", "LayerLocality", 10, 0, ""}, // 40 x 10, as 100 x 4
		{"layerlocality:steps=10:weight=2", "LayerLocality", 20, 0, ""},
		{"prototype:weight=9", prototypeName, 9, 0, ""},
	} {
		t.Run(test.policy, func(t *testing.T) {
			r := begin(t, test.policy, &workload.Plan{Nodes: nodesOf(1)}, nil)
			weights := map[string]int32{}
			for _, plugin := range r.scheduler.Framework.ListPlugins().Score.Enabled {
				weights[plugin.Name] = plugin.Weight
			}
			if weights[test.score] != test.want || weights[imageLocality] != test.images || weights["NodeResourcesFit"] != 1 || weights["PodTopologySpread"] != 2 {
				t.Errorf("weights %v; want %s %d, ImageLocality %d, and the defaults", weights, test.score, test.want, test.images)
			}
			if r.policy.Args != test.arguments {
				t.Errorf("arguments %q, want %q", r.policy.Args, test.arguments)
			}
		})
	}
	for _, text := range []string{"", "none", "default:weight=3", "greedy:weight=3", "layerlocality:weight", "layerlocality:weight=x", "layerlocality:wait=x", "image-name:loadPenalty=1", "default:images=magic", "default:history=none", "layerlocality-stock-nodes:history=default", "layerlocality:nodes=agent:history=default", "layerlocality:nodes=all", "greedy:nodes=agent", "default:reuse=all", "default:reuse=chain:history=default", "layerlocality:steps=0", "layerlocality:steps=101", "layerlocality:steps=30", "prototype:steps=10"} {
		if _, err := ParsePolicy(text); err == nil || !strings.Contains(err.Error(), "policy ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// scored returns the points of a plugin for a pod by node, before weights.
func (r *run) scored(t *testing.T, plugin string, pod *pod) map[string]int64 {
	t.Helper()
	if node, _ := r.realChoice(t, pod.object); node == "" { // brings the snapshot up to date
		t.Fatal("no node")
	}
	s := r.scheduler
	all, err := s.Snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	state := framework.NewCycleState()
	if _, status, _ := s.Framework.RunPreFilterPlugins(t.Context(), state, pod.object); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := s.Framework.RunPreScorePlugins(t.Context(), state, pod.object, all); !status.IsSuccess() {
		t.Fatal(status)
	}
	list, status := s.Framework.RunScorePlugins(t.Context(), state, pod.object, all)
	if !status.IsSuccess() {
		t.Fatal(status)
	}
	scores := map[string]int64{}
	for _, n := range list {
		for _, p := range n.Scores {
			if p.Name == plugin {
				scores[n.Name] = p.Score / int64(r.policy.Weight) // the framework has weighted it
			}
		}
	}
	return scores
}

func wantScores(t *testing.T, got map[string]int64, want ...int64) {
	t.Helper()
	for i, score := range want {
		if name := fmt.Sprintf("n%03d", i); got[name] != score {
			t.Errorf("%s: score %d, want %d", name, got[name], score)
		}
	}
}

func TestImageName(t *testing.T) {
	nodes := nodesOf(3)
	nodes[0].Holds, nodes[1].Holds = []string{"tiny:1"}, []string{"huge:1"}
	images := []dataset.Image{imageOf("tiny:1", "t", 0), imageOf("huge:1", "h", 900), imageOf("alias:1", "h", 900)}
	r := begin(t, "image-name", &workload.Plan{Nodes: nodes, Images: images}, nil)
	wantScores(t, r.scored(t, imageName, r.newPod("tiny:1", "", 1, 1, false, "")), 100, 0, 0)
	wantScores(t, r.scored(t, imageName, r.newPod("huge:1", "", 1, 1, false, "")), 0, 100, 0)
	wantScores(t, r.scored(t, imageName, r.newPod("alias:1", "", 1, 1, false, "")), 0, 0, 0) // names only
}

// The prototype keeps for ever the layers that the first node reported for a name.
func TestPrototype(t *testing.T) {
	nodes := nodesOf(3)
	nodes[0].Holds, nodes[1].Holds = []string{"quay.io/a:1"}, []string{"quay.io/b:1"}
	nodes[1].Disk = 50 * mb // so that b is removed when it is not used
	images := []dataset.Image{imageOf("quay.io/a:1", "S", 60, "a", 40), imageOf("quay.io/b:1", "S", 60, "b", 140), imageOf("quay.io/small:1", "s", 0)}
	r := begin(t, "prototype", &workload.Plan{Nodes: nodes, Images: images, Events: []workload.Event{
		{At: time.Minute, Pod: podOf("quay.io/small:1", 1, 0)},
		{At: 20 * time.Minute, Pod: podOf("quay.io/small:1", 1, 0)},
	}}, nil)
	score := func(image string) map[string]int64 {
		return r.scored(t, prototypeName, r.newPod(image, "", 1, 1, false, ""))
	}
	wantScores(t, score("quay.io/a:1"), 100, 60, 0)
	wantScores(t, score("quay.io/b:1"), 30, 100, 0)
	wantScores(t, score("quay.io/small:1"), 0, 0, 0) // nobody has it
	r.playAll(t, nil)
	wantScores(t, score("quay.io/a:1"), 100, 0, 0)
	wantScores(t, score("quay.io/b:1"), 0, 0, 0) // no node has it now
	// An image that is known without layers: 0 divided by 0.
	r.report(r.order[0])
	r.machines["n000"].hold(r.images["quay.io/small:1"], "quay.io/small:1")
	r.machines["n000"].listed = r.machines["n000"].list()
	r.report(r.order[0])
	wantScores(t, score("quay.io/small:1"), 0, 0, 0)
}

// Cases computed by hand from the formula in the authors' code.
func TestLRScheduler(t *testing.T) {
	const mib = 1 << 20
	layer := func(digest string, size int64) dataset.Layer { return dataset.Layer{Digest: digest, Size: size} }
	image := func(name string, layers ...dataset.Layer) dataset.Image {
		return dataset.Image{Image: name, Layers: layers}
	}
	images := []dataset.Image{
		image("whole", layer("w", 100*mib)),
		image("base", layer("S", 30*mib)),
		image("other", layer("S", 30*mib), layer("o", 70*mib)),
		image("tens", layer("t", 11*mib-1)),
		image("eleven", layer("e", 11*mib)),
		image("small", layer("W", 20*mib), layer("x", 1000)),
		image("cut", layer("W", 20*mib), layer("x", 1000), layer("c", 10*mib)),
		image("empty"),
		// 58 %: int(0.58*100/2) is 28 in floating point, not 29.
		image("58", layer("58", 58*mib)),
		image("58 of 100", layer("58", 58*mib), layer("42", 42*mib)),
	}
	for _, test := range []struct {
		name, holds, image string
		running            [2]int64 // milliCPU and MiB that running pods request; of 4000 and 4096
		pulling            [2]int64
		request            [2]int64
		want               int64
	}{
		{name: "all there, idle", holds: "whole", image: "whole", want: 100},
		{name: "nothing there", holds: "base", image: "whole", want: 0},
		{name: "30 of 100 MiB", holds: "base", image: "other", want: 30}, // 15 x 2
		{name: "truncated", holds: "small", image: "cut", want: 66},      // 20.001/30.001: int(33.33) x 2
		{name: "10 MiB and a bit are too little", holds: "tens", image: "tens", want: 25},
		{name: "11 MiB are enough", holds: "eleven", image: "eleven", want: 100},
		{name: "an image without layers", holds: "empty", image: "empty", want: 0},
		{name: "as floating point has it", holds: "58", image: "58 of 100", want: 56},
		{name: "CPU at 60 %", holds: "whole", image: "whole", running: [2]int64{2300, 2355}, request: [2]int64{100, 102}, want: 25},
		{name: "CPU just below", holds: "whole", image: "whole", running: [2]int64{2299, 2355}, request: [2]int64{100, 102}, want: 100},
		{name: "the pod itself counts", holds: "whole", image: "whole", request: [2]int64{2400, 2458}, want: 25},
		{name: "unbalanced", holds: "whole", image: "whole", running: [2]int64{1400, 0}, want: 25}, // .35 and 0: .175
		{name: "less unbalanced", holds: "whole", image: "whole", running: [2]int64{1200, 0}, want: 100},
		{name: "unbalanced the other way", holds: "whole", image: "whole", running: [2]int64{0, 1400}, want: 25},
		{name: "pods that pull do not count", holds: "whole", image: "whole", pulling: [2]int64{3000, 3000}, want: 100},
	} {
		for _, policy := range []string{"lrscheduler", "lrscheduler-live"} {
			t.Run(test.name+", "+policy, func(t *testing.T) {
				nodes := nodesOf(2)
				nodes[0].Holds = []string{test.holds}
				r := begin(t, policy, &workload.Plan{Nodes: nodes, Images: images}, nil)
				place := func(request [2]int64, phase v1.PodPhase) {
					p := r.newPod("base", "", request[0], request[1]*mib, false, "").object
					p.Name += string(phase)
					p.UID += types.UID(phase)
					p.Spec.NodeName, p.Status.Phase = "n000", phase
					if err := r.scheduler.Pods.Set(nil, p); err != nil {
						t.Fatal(err)
					}
				}
				place(test.running, v1.PodRunning)
				place(test.pulling, v1.PodPending)
				pod := r.newPod(test.image, "", test.request[0], test.request[1]*mib, false, "")
				if _, err := r.scheduler.Schedule(r.newPod("base", "", 1, 1, false, "").object); err != nil { // a fresh snapshot
					t.Fatal(err)
				}
				for name, want := range map[string]int64{"n000": test.want, "n001": 0} {
					info, err := r.scheduler.Snapshot.NodeInfos().Get(name)
					if err != nil {
						t.Fatal(err)
					}
					if got := r.scoreLRScheduler(pod.object, info); got != want {
						t.Errorf("%s: score %d, want %d", name, got, want)
					}
				}
			})
		}
	}
}

// If live, LRScheduler sees what is complete; otherwise what is reported.
func TestLRSchedulerSees(t *testing.T) {
	for policy, want := range map[string][3]int64{"lrscheduler": {0, 0, 100}, "lrscheduler-live": {0, 100, 100}} {
		r := begin(t, policy, &workload.Plan{Nodes: nodesOf(2), Images: []dataset.Image{imageOf("a", "a", 60, "b", 6)}, Events: []workload.Event{
			{At: 0, Pod: podOf("a", 100, 0)}, {At: time.Hour, Pod: podOf("a", 100, 0)},
		}}, nil)
		look := func() (most int64) {
			pod := r.newPod("a", "", 1, 1, false, "").object
			for _, m := range r.order {
				info, err := r.scheduler.Snapshot.NodeInfos().Get(m.Name)
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, r.scoreLRScheduler(pod, info))
			}
			return most
		}
		r.step()
		var got [3]int64
		for r.q.pending[0].at < 5*time.Second { // b is there, and the pull of a goes on
			r.q.next()
		}
		got[0] = look()
		for r.q.pending[0].at <= 11*time.Second+10 { // just complete
			r.q.next()
		}
		got[1] = look()
		for r.q.pending[0].at < time.Minute {
			r.q.next()
		}
		got[2] = look()
		if got != want {
			t.Errorf("%s: %v while it pulls, when it is there, and reported; want %v", policy, got, want)
		}
	}
}

// greedy never takes a node that has to pull more than another on which the pod fits.
func TestGreedy(t *testing.T) {
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 11))
		r := begin(t, "greedy", randomPlan(random, 3+random.IntN(12), 150), nil)
		choose, choices, loads := r.scheduler.Choose, 0, 0
		r.scheduler.Choose = func(pod *v1.Pod, nodes []fwk.NodeInfo) int {
			best := choose(pod, nodes)
			name := pod.Spec.Containers[0].Image
			chosen := r.machines[nodes[best].Node().Name]
			share := func(n fwk.NodeInfo) float64 {
				return float64(n.GetRequested().GetMilliCPU()) / float64(n.GetAllocatable().GetMilliCPU())
			}
			for _, n := range nodes {
				m := r.machines[n.Node().Name]
				switch least := chosen.wouldPull(r.images[name], name); {
				case m.wouldPull(r.images[name], name) < least:
					t.Errorf("seed %d at %s: %s has to pull more than %s", seed, r.q.now, chosen.Name, m.Name)
				case m.wouldPull(r.images[name], name) > least:
					choices++
				case share(n) < share(nodes[best]):
					t.Errorf("seed %d at %s: %s has more CPU requested than %s", seed, r.q.now, chosen.Name, m.Name)
				case share(n) > share(nodes[best]):
					loads++
				}
			}
			return best
		}
		r.playAll(t, nil)
		if choices == 0 || loads == 0 {
			t.Errorf("seed %d: %d nodes were worse, %d only busier: both should happen", seed, choices, loads)
		}
	}
	t.Run("above 100 nodes", func(t *testing.T) {
		nodes := nodesOf(300)
		nodes[299].Holds = []string{"a"}
		r := begin(t, "greedy", &workload.Plan{Nodes: nodes, Images: []dataset.Image{imageOf("a", "a", 60)}, Events: []workload.Event{{Pod: podOf("a", 100, 0)}}}, nil)
		if m := r.playAll(t, nil); m.PulledBytes != 0 {
			t.Errorf("%d bytes pulled, though a node has the image", m.PulledBytes)
		}
	})
}

// wouldPull computes independently of missing: the layers of an image that are not
// on the disk, or nothing if the image is being pulled.
func (m *machine) wouldPull(i *image, name string) (bytes int64) {
	for _, p := range append(m.pulls[:len(m.pulls):len(m.pulls)], m.waiting...) {
		if p.name == name {
			return 0
		}
	}
	for _, b := range i.layers {
		if _, ok := m.present[b]; !ok {
			bytes += b.size
		}
	}
	return bytes
}

// LayerLocality gets the manifests of names that were used, after the delay.
func TestManifests(t *testing.T) {
	images := []dataset.Image{imageOf("quay.io/a:1", "a", 6, "tiny", 0), imageOf("quay.io/alias:1", "a", 6, "tiny", 0), imageOf("quay.io/b:1", "b", 6)}
	for policy, want := range map[string][2]string{
		"layerlocality": {"", "a"}, "layerlocality-no-wait": {"", "a"}, "layerlocality-no-resolver": {"", ""}, "lrscheduler": {"a alias b", "a alias b"},
	} {
		r := begin(t, policy, &workload.Plan{Nodes: nodesOf(1), Images: images}, nil)
		source := newManifests(r)
		known := func() string {
			var names []string
			for _, name := range []string{"a", "alias", "b"} {
				canonical, err := imageref.Parse("quay.io/" + name + ":1")
				if err != nil {
					t.Fatal(err)
				}
				if m := source.Manifests(canonical); len(m) > 0 {
					names = append(names, name)
					if n := len(m[0].Layers); name != "b" && n != 2 {
						t.Errorf("%d layers of %s, want also the small one", n, name)
					}
				}
			}
			return strings.Join(names, " ")
		}
		r.use("quay.io/a:1")
		r.q.now = r.model.ManifestDelay - 1
		before := known()
		r.q.now++
		if after := known(); before != want[0] || after != want[1] {
			t.Errorf("%s: %q known before, %q after the delay; want %q", policy, before, after, want)
		}
	}
}

package locality_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

var (
	amd64 = index.Platform{OS: "linux", Architecture: "amd64"}
	arm64 = index.Platform{OS: "linux", Architecture: "arm64"}
)

// stock is a cluster whose nodes state names only, and a source that resolves some. Events
// are delivered by hand, one after another.
type stock struct {
	t       *testing.T
	source  *fixture.FollowedImages
	agent   *fixture.Agent
	tracker *locality.Tracker
	profile *locality.Profile
	store   cache.Store
	handler cache.ResourceEventHandler
	nodes   map[string]*v1.Node
}

func newStock(t *testing.T, source *fixture.FollowedImages, change ...func(*configv1.LayerLocalityArgs)) *stock {
	t.Helper()
	core := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1()
	s := &stock{t: t, source: source, agent: &fixture.Agent{}, nodes: map[string]*v1.Node{}}
	s.tracker = locality.NewTracker(locality.Config{
		Nodes: core.Nodes(), Pods: core.Pods(), Images: []locality.ManifestSource{source}, Layers: []locality.NodeSource{s.agent},
		Clock: clocktesting.NewFakePassiveClock(time.Now()),
	})
	s.profile = s.tracker.NewProfile("p", fixture.Args(change...))
	must(t, s.tracker.Start(t.Context()))
	s.handler, _ = s.tracker.Events(t.Context())
	s.store, _ = s.tracker.Stores()
	return s
}

// lists makes a node list images, each given by its names.
func (s *stock) lists(node string, platform index.Platform, images ...[]string) {
	s.t.Helper()
	n := fixture.Node(node)
	n.Status.NodeInfo.OperatingSystem, n.Status.NodeInfo.Architecture = platform.OS, platform.Architecture
	for i, names := range images {
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: names, SizeBytes: int64(1000-i) * mb})
	}
	s.set(n)
}

func (s *stock) set(n *v1.Node) {
	s.t.Helper()
	old := s.nodes[n.Name]
	s.nodes[n.Name] = n
	must(s.t, s.store.Update(n))
	if old == nil {
		s.handler.OnAdd(n, false)
	} else {
		s.handler.OnUpdate(old, n)
	}
}

// has returns what a node has of images.
func (s *stock) has(node string, images ...string) index.NodeBytes {
	var m index.Measurement
	s.profile.Measure(s.profile.Wanted(fixture.Pod("p", images...)), &m)
	bytes, _ := m.Node(node)
	return bytes
}

// expect checks how many megabytes a node has of an image.
func (s *stock) expect(what, node, image string, present, total int64) {
	s.t.Helper()
	if got := s.has(node, image); got.Present != present*mb || got.Total != total*mb {
		s.t.Errorf("%s: %s has %d of %d MB of %s, want %d of %d", what, node, got.Present/mb, got.Total/mb, image, present, total)
	}
}

// layer returns a layer of so many megabytes.
func layer(name string, megabytes int64) index.Layer {
	return index.Layer{Digest: digest(name), Size: megabytes * mb}
}

// ordered returns a manifest with the layers, the base first.
func ordered(layers ...index.Layer) index.Manifest {
	manifest := index.Manifest{Layers: layers}
	for i := range layers {
		manifest.Order = append(manifest.Order, uint16(i))
	}
	return manifest
}

func every(layers ...index.Layer) index.Manifest { return index.Manifest{Layers: layers} }

// at returns the name of an image by digest, as nodes list it.
func at(repository, of string) string { return repository + "@" + digest(of) }

func sha(of string) imageref.Canonical { return imageref.Canonical(digest(of)) }

// A node that names an image has its layers: those of the manifest for its platform.
func TestNamesAndManifests(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set(sha("index"),
		index.Manifest{Platform: amd64, Layers: []index.Layer{layer("base", 100), layer("a", 10)}},
		index.Manifest{Platform: arm64, Layers: []index.Layer{layer("armbase", 200), layer("arm", 20)}})
	source.Set(sha("plain"), every(layer("base", 100), layer("p", 30)))
	source.Set("quay.io/other:1", every(layer("base", 100), layer("o", 5)))
	source.Set("quay.io/arm:1", index.Manifest{Platform: arm64, Layers: []index.Layer{layer("armbase", 200)}}, index.Manifest{Platform: amd64, Layers: []index.Layer{layer("base", 100)}})

	s.lists("amd", amd64, []string{at("quay.io/a", "index"), "quay.io/a:1"})
	s.lists("arm", arm64, []string{at("quay.io/a", "index"), "quay.io/a:1"})
	s.lists("unknown", index.Platform{}, []string{at("quay.io/a", "index")}, []string{at("quay.io/p", "plain")})
	s.lists("name only", amd64, []string{at("quay.io/b", "nobody knows"), "quay.io/b:1"})
	s.lists("none", amd64)
	for node, present := range map[string]int64{"amd": 100, "arm": 0, "unknown": 100, "name only": 0, "none": 0} {
		s.expect("another image on the same base", node, "quay.io/other:1", present, 105)
	}
	s.expect("its own", "amd", "quay.io/a@"+digest("index"), 110, 110)
	s.expect("the tag that nodes state, of the node's platform", "amd", "quay.io/a:1", 110, 110)
	s.expect("an image for another platform", "arm", "quay.io/arm:1", 200, 200)

	for node, want := range map[string]map[locality.Provenance]int{
		"amd": {locality.FromManifest: 1}, "unknown": {locality.FromManifest: 1, locality.FromName: 1},
		"name only": {locality.FromName: 1}, "none": {},
	} {
		if got := s.tracker.ImagesOf(node); !reflect.DeepEqual(got, want) {
			t.Errorf("images of %s: %v, want %v", node, got, want)
		}
	}
	want := map[locality.Provenance]int{locality.FromLayers: 0, locality.FromManifest: 3, locality.FromName: 2, locality.FromUse: 0}
	if got := s.tracker.ImagesOfAll(); !reflect.DeepEqual(got, want) {
		t.Errorf("all images: %v, want %v", got, want)
	}
	for node, want := range map[string]locality.Provenance{"amd": locality.FromManifest, "name only": "", "none": "", "nowhere": ""} {
		if got := s.tracker.Provenance(node, []imageref.Canonical{"quay.io/a:1"}); got != want {
			t.Errorf("quay.io/a:1 on %s is known by %q, want %q", node, got, want)
		}
	}
}

// From an index, a node may have taken another manifest than the source did. It names both,
// in any order.
func TestManifestBeforeIndex(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set(sha("index"), index.Manifest{Platform: amd64, Layers: []index.Layer{layer("gzip", 100)}})
	source.Set("quay.io/other:1", every(layer("gzip", 100), layer("zstd", 80)))
	names := []string{at("quay.io/a", "index"), at("quay.io/a", "chosen"), "quay.io/a:1"}
	s.lists("n1", amd64, names)
	s.lists("n2", amd64, []string{names[1], names[0]})
	for _, node := range []string{"n1", "n2"} {
		s.expect("what the source took", node, "quay.io/other:1", 100, 180)
	}
	source.Set(sha("chosen"), every(layer("zstd", 80)))
	for _, node := range []string{"n1", "n2"} {
		s.expect("what the node took", node, "quay.io/other:1", 80, 180)
	}
}

// An image that has no digest is known by its tag, unless that may be several images.
func TestTagOfNode(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set("quay.io/other:1", every(layer("base", 100), layer("o", 5)))
	source.Set("quay.io/a:1", every(layer("base", 100), layer("a", 10)))
	s.lists("loaded", amd64, []string{"quay.io/a:1"})
	s.lists("pulled", amd64, []string{at("quay.io/a", "before"), "quay.io/a:1"})
	s.lists("odd", amd64, []string{"<none>@<none>", "quay.io/a:1"})
	for node, present := range map[string]int64{"loaded": 100, "pulled": 0, "odd": 100} {
		s.expect("one manifest has the tag", node, "quay.io/other:1", present, 105)
	}
	source.Set("quay.io/a:1", every(layer("base", 100), layer("a", 10)), every(layer("base", 100), layer("a2", 10)))
	for _, node := range []string{"loaded", "pulled", "odd"} {
		s.expect("the tag moved", node, "quay.io/other:1", 0, 105)
	}
}

// With pull policy Always, a node that has another image under the tag has only the layers
// that both have: a manifest shows which.
func TestPullAlways(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set(sha("before"), every(layer("base", 100), layer("before", 10)))
	source.Set("quay.io/a:1", every(layer("base", 100), layer("after", 20)))
	s.lists("n1", amd64, []string{at("quay.io/a", "before"), "quay.io/a:1"})
	pod := fixture.Pod("p", "quay.io/a:1")
	pod.Spec.Containers[0].ImagePullPolicy = v1.PullAlways
	var m index.Measurement
	s.profile.Measure(s.profile.Wanted(pod), &m)
	if got, _ := m.Node("n1"); got.Present != 100*mb || got.Total != 120*mb {
		t.Errorf("%+v, want the base only", got)
	}
	s.expect("the kubelet uses what is there", "n1", "quay.io/a:1", 120, 120)
}

// What the node states itself counts, whatever a manifest states.
func TestStatedLayersWin(t *testing.T) {
	if !nodestatus.Layers {
		t.Skip("this build does not see layers in NodeStatus: the workspace that scripts/tree.sh workspace makes does, with -tags imagelayers")
	}
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set(sha("lies"), every(layer("base", 100), layer("never", 900)))
	source.Set("quay.io/other:1", every(layer("base", 100), layer("stated", 50)))
	n := fixture.Node("n1")
	n.Status.Images = []v1.ContainerImage{{Names: []string{at("quay.io/a", "lies")}, SizeBytes: mb}}
	nodestatus.SetLayers(&n.Status.Images[0], []index.Layer{layer("stated", 50)})
	s.set(n)
	s.expect("what the node states", "n1", "quay.io/other:1", 50, 150)
	if got := s.tracker.ImagesOf("n1"); !reflect.DeepEqual(got, map[locality.Provenance]int{locality.FromLayers: 1}) {
		t.Errorf("known by %v", got)
	}
}

// A manifest that comes late, changes or goes is followed on all nodes that name it; and so
// is the platform of a node.
func TestManifestsAreFollowed(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source)
	source.Set("quay.io/other:1", every(layer("base", 100), layer("second", 40)))
	for _, node := range []string{"n1", "n2"} {
		s.lists(node, amd64, []string{at("quay.io/a", "late"), "quay.io/a:1"}, []string{"quay.io/b:1"})
	}
	s.lists("n3", amd64, []string{"quay.io/b:1"})
	both := func(what string, present int64) {
		t.Helper()
		s.expect(what, "n1", "quay.io/other:1", present, 140)
		s.expect(what, "n2", "quay.io/other:1", present, 140)
		s.expect(what, "n3", "quay.io/other:1", 0, 140)
	}
	both("before", 0)
	source.Set(sha("late"), every(layer("base", 100)))
	both("it came", 100)
	source.Set(sha("late"), every(layer("base", 100), layer("second", 40)))
	both("it changed", 140)
	source.Set(sha("late"), index.Manifest{Platform: arm64, Layers: []index.Layer{layer("base", 100)}})
	both("it is for another platform", 0)
	s.lists("n1", arm64, []string{at("quay.io/a", "late"), "quay.io/a:1"}, []string{"quay.io/b:1"})
	s.expect("a node of that platform", "n1", "quay.io/other:1", 100, 140)
	source.Set(sha("late"))
	both("it is gone", 0)
	// A node that is gone does not come back with a manifest.
	must(t, s.store.Delete(s.nodes["n2"]))
	s.handler.OnDelete(s.nodes["n2"])
	source.Set(sha("late"), every(layer("base", 100)))
	if n := s.tracker.Stats().Nodes; n != 2 {
		t.Errorf("%d nodes, one of three was deleted", n)
	}
}

// What a node has and does not list any more is resolved too, also when the manifest comes
// later.
func TestUnlistedIsResolved(t *testing.T) {
	source := &fixture.FollowedImages{}
	s := newStock(t, source, func(a *configv1.LayerLocalityArgs) {
		a.NodeStatusMaxImages, a.UnlistedTimeout = ptr.To[int32](2), &metav1.Duration{Duration: time.Hour}
	})
	source.Set("quay.io/other:1", every(layer("base", 100), layer("o", 5)))
	large, small := []string{at("quay.io/large", "large")}, []string{at("quay.io/small", "small")}
	s.lists("n1", amd64, large, small)
	s.lists("n1", amd64, large, []string{at("quay.io/new", "new")}) // small is pushed out
	s.expect("nothing is known", "n1", "quay.io/other:1", 0, 105)
	if got := s.tracker.ImagesOf("n1"); got[locality.FromUse] != 1 {
		t.Fatalf("the image that is not listed any more is not remembered: %v", got)
	}
	source.Set(sha("small"), every(layer("base", 100)))
	s.expect("the manifest came", "n1", "quay.io/other:1", 100, 105)
	source.Set(sha("small"))
	s.expect("the manifest is gone", "n1", "quay.io/other:1", 0, 105)
}

// Nodes that state no layers use them again as the arguments are: what is above another
// base counts only where digests alone matter, and what is above the same everywhere.
func TestLayerReuse(t *testing.T) {
	for reuse, want := range map[string]int64{config.ReuseByDigest: 100, config.ReuseInChains: 0} {
		source := &fixture.FollowedImages{}
		s := newStock(t, source, func(a *configv1.LayerLocalityArgs) { a.LayerReuse = &reuse })
		source.Set(sha("held"), ordered(layer("base", 10), layer("shared", 100)))
		source.Set("quay.io/other:1", ordered(layer("another", 20), layer("shared", 100)))
		source.Set("quay.io/grown:1", ordered(layer("base", 10), layer("shared", 100), layer("own", 30)))
		s.lists("n1", amd64, []string{at("quay.io/held", "held")})
		s.expect(reuse, "n1", "quay.io/other:1", want, 120)
		s.expect(reuse, "n1", "quay.io/grown:1", 110, 140)
	}
}

// A node with CRI-O uses layers by their digests, whatever the arguments are for nodes that do
// not state it, also as long as it has no image that would show it.
func TestLayerReuseOfCRIO(t *testing.T) {
	for runtime, want := range map[string]int64{"cri-o://1.36.3": 100, "containerd://2.3.7": 0} {
		source := &fixture.FollowedImages{}
		s := newStock(t, source, func(a *configv1.LayerLocalityArgs) { a.LayerReuse = ptr.To(config.ReuseInChains) })
		source.Set(sha("held"), ordered(layer("base", 10), layer("shared", 100)))
		source.Set("quay.io/other:1", ordered(layer("another", 20), layer("shared", 100)))
		s.lists("n1", amd64)
		node := s.nodes["n1"].DeepCopy()
		node.Status.NodeInfo.ContainerRuntimeVersion = runtime
		node.Status.Images = []v1.ContainerImage{{Names: []string{at("quay.io/held", "held")}}}
		s.set(node)
		s.expect(runtime, "n1", "quay.io/other:1", want, 120)
	}
}

// After many random events, answers are those of a cluster that has only ever seen what is
// left.
func TestRandomManifestsAndNodes(t *testing.T) {
	const names, nodes, events = 12, 6, 3000
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 16)) //nolint:gosec // a test that can be repeated
		source := &fixture.FollowedImages{}
		s := newStock(t, source, func(a *configv1.LayerLocalityArgs) { a.UnlistedTimeout = &metav1.Duration{} })
		platform := func() index.Platform { return []index.Platform{amd64, arm64, {}}[r.IntN(3)] }
		layers := func() (some []index.Layer) {
			for range r.IntN(4) {
				l := r.IntN(8)
				some = append(some, layer(fmt.Sprint("l", l), int64(l+1)))
			}
			return some
		}
		tag := func(i int) string { return fmt.Sprintf("quay.io/r%d:1", i%4) }
		for range events {
			i := r.IntN(names)
			name := sha(fmt.Sprint(i))
			if r.IntN(3) == 0 {
				name = imageref.Canonical(tag(i))
			}
			switch r.IntN(6) {
			case 0:
				source.Set(name)
			case 1:
				source.Set(name, every(layers()...))
			case 2:
				source.Set(name, index.Manifest{Platform: amd64, Layers: layers()}, index.Manifest{Platform: arm64, Layers: layers()})
			case 3:
				node := fmt.Sprint("n", r.IntN(nodes))
				if old := s.nodes[node]; old != nil && r.IntN(2) == 0 {
					must(t, s.store.Delete(old))
					s.handler.OnDelete(old)
					delete(s.nodes, node)
				}
			default:
				var images [][]string
				for j := range names {
					switch r.IntN(5) {
					case 0:
						images = append(images, []string{at("quay.io/r", fmt.Sprint(j)), tag(j)})
					case 1:
						images = append(images, []string{tag(j)})
					}
				}
				s.lists(fmt.Sprint("n", r.IntN(nodes)), platform(), images...)
			}
		}
		left := &fixture.FollowedImages{Images: source.Images}
		fresh := newStock(t, left, func(a *configv1.LayerLocalityArgs) { a.UnlistedTimeout = &metav1.Duration{} })
		for _, n := range s.nodes {
			fresh.set(n)
		}
		for i := range names {
			for _, image := range []string{at("x", fmt.Sprint(i)), tag(i)} {
				for node := range s.nodes {
					if got, want := s.has(node, image), fresh.has(node, image); got != want {
						t.Fatalf("seed %d: %s of %s: %+v, want %+v", seed, node, image, got, want)
					}
				}
			}
		}
		if got, want := s.tracker.ImagesOfAll(), fresh.tracker.ImagesOfAll(); !reflect.DeepEqual(got, want) {
			t.Errorf("seed %d: images %v, want %v", seed, got, want)
		}
		if got, want := s.tracker.Stats(), fresh.tracker.Stats(); got != want {
			t.Errorf("seed %d: index %+v, want %+v", seed, got, want)
		}
	}
}

package collect

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// madeUp is a cluster made by chance: images on a few bases, nodes with some of them, pods that run or wait.
type madeUp struct {
	*rand.Rand
	images []v1alpha1.ImageManifest
	lists  v1alpha1.NodeLayersList
	nodes  v1.NodeList
	pods   v1.PodList
	target v1.Pod
}

func (m *madeUp) pod(name, node string, phase v1.PodPhase) v1.Pod {
	p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "1"}, Spec: v1.PodSpec{NodeName: node}, Status: v1.PodStatus{Phase: phase}}
	for i := range 1 + m.IntN(2) {
		c := v1.Container{Name: fmt.Sprint(i), Image: imageName(m.IntN(len(m.images))), ImagePullPolicy: []v1.PullPolicy{v1.PullAlways, v1.PullIfNotPresent}[m.IntN(2)]}
		p.Spec.Containers = append(p.Spec.Containers, c)
		s := v1.ContainerStatus{Name: c.Name, Image: c.Image, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
		if phase == v1.PodRunning && m.IntN(4) > 0 {
			s.ImageID, s.State = "sha256:x", v1.ContainerState{Running: &v1.ContainerStateRunning{}}
		}
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, s)
	}
	return p
}

func imageName(i int) string { return fmt.Sprintf("quay.io/team/image:%d", i) }

// makeUp returns a cluster. unknown means that ImageManifests lack some images, arm that some nodes are arm64.
func makeUp(seed uint64, unknown, arm bool) *madeUp {
	m := &madeUp{Rand: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // chance that can be repeated
	layer := func(i int) v1alpha1.ImageLayer {
		return v1alpha1.ImageLayer{Digest: fmt.Sprintf("sha256:%064x", i), Size: int64(1+i%7) * 1e6}
	}
	for i := range 12 {
		o := v1alpha1.ImageManifest{}
		o.Spec = v1alpha1.ImageManifestSpec{Digest: fmt.Sprintf("sha256:%064x", 1000+i), Layers: []v1alpha1.ImageLayer{layer(i % 3), layer(10 + i%5), layer(100 + i)}}
		o.Name = v1alpha1.ManifestName(o.Spec.Digest)
		o.Status.References = []v1alpha1.ImageReference{{Name: imageName(i), Digest: o.Spec.Digest}}
		if arm {
			o.Spec.Platform = "linux/amd64"
		}
		m.images = append(m.images, o)
	}
	m.lists.Kind, m.nodes.Kind, m.nodes.APIVersion = "NodeLayersList", "NodeList", "v1"
	for n := range 8 {
		name := fmt.Sprintf("n%d", n)
		node := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}}
		node.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		if arm && n%2 == 1 {
			node.Status.NodeInfo.Architecture = "arm64"
		}
		m.nodes.Items = append(m.nodes.Items, node)
		o := nodeLayers(name)
		o.Spec.Layers = nil
		if n%3 == 0 {
			o.Spec.Reuse = v1alpha1.ReuseInChains
		}
		for _, i := range m.Perm(len(m.images))[:4] {
			of := m.images[i].Spec.Layers
			switch {
			case node.Status.NodeInfo.Architecture == "arm64":
				of = []v1alpha1.ImageLayer{layer(500 + i%3), layer(600 + i)}
			case m.IntN(5) == 0: // the tag is another image's there
				of = []v1alpha1.ImageLayer{layer(700 + i), layer(i % 3)}
			}
			var places []string
			for _, l := range of {
				text := fmt.Sprintf("%s %d", l.Digest, l.Size)
				at := slices.Index(o.Spec.Layers, text)
				if at < 0 {
					at = len(o.Spec.Layers)
					o.Spec.Layers = append(o.Spec.Layers, text)
				}
				places = append(places, fmt.Sprint(at))
			}
			text := strings.Join(places, ",")
			if m.IntN(6) == 0 {
				text = "-"
			}
			o.Spec.Images = append(o.Spec.Images, text+" "+imageName(i)+" "+m.images[i].Spec.Digest)
		}
		o.Spec.Images = append(o.Spec.Images, "4000 quay.io/invalid:1", "x quay.io/invalid:2")
		m.lists.Items = append(m.lists.Items, o)
		for i := range 3 {
			m.pods.Items = append(m.pods.Items, m.pod(fmt.Sprintf("%s-%d", name, i), name, []v1.PodPhase{v1.PodRunning, v1.PodPending}[m.IntN(2)]))
		}
	}
	m.target = m.pod("target", "", v1.PodPending)
	if unknown {
		m.images = slices.DeleteFunc(m.images, func(v1alpha1.ImageManifest) bool { return m.IntN(4) == 0 })
	}
	return m
}

// read reads the cluster for some pods, and returns what each node has of the target's images.
func (m *madeUp) read(t *testing.T, pods ...*v1.Pod) (*Cluster, []index.NodeBytes, []index.Known) {
	t.Helper()
	m.pods.Kind, m.pods.APIVersion = "PodList", "v1"
	r, _ := start(t, map[string][]answer{
		"nodes": {{status: http.StatusOK, object: m.nodes}}, "pods": {{status: http.StatusOK, object: m.pods}},
		"nodelayers": {layersList(m.lists.Items...)}, "imagemanifests": {manifestList(m.images...)},
	})
	parts := everything
	parts.For = pods
	c, err := r.Read(t.Context(), parts)
	if err != nil || len(c.Problems) > 0 {
		t.Fatalf("%v, %v", err, c)
	}
	c.Now = m.lists.Items[0].Spec.RenewTime.Time // the clock of both readings
	known, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found index.Measurement
	known.Measure(known.Wanted(&m.target), &found)
	var all []index.NodeBytes
	for _, node := range c.Nodes {
		b, ok := found.Node(node.Name)
		if !ok {
			t.Fatalf("%s is missing", node.Name)
		}
		all = append(all, b)
	}
	return c, all, found.Images
}

// layersKept counts the layers of all images that nodes report.
func layersKept(c *Cluster) (count int) {
	for _, node := range c.Nodes {
		for _, image := range c.Reports.Of(node.Name).Images {
			count += len(image.Layers)
		}
	}
	return count
}

// Nodes are rated for a pod by what matters to it as by all that they report.
func TestReadForPods(t *testing.T) {
	less := 0
	for seed := range uint64(60) {
		for _, unknown := range []bool{false, true} {
			for _, arm := range []bool{false, true} {
				m := makeUp(seed, unknown, arm)
				all, want, wantKnown := m.read(t)
				some, got, gotKnown := m.read(t, &m.target)
				if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotKnown, wantKnown) {
					t.Fatalf("seed %d, unknown %t, arm64 %t: %v of %+v\nwant %v of %+v", seed, unknown, arm, gotKnown, got, wantKnown, want)
				}
				if a, b := all.Agents["n1"], some.Agents["n1"]; b.Invalid != 2 || a.Invalid != 2 || a.TotalLayers != b.TotalLayers {
					t.Fatalf("%+v, want %+v", b, a)
				}
				if layersKept(some) < layersKept(all) {
					less++
				}
			}
		}
	}
	if less == 0 {
		t.Error("all layers are kept in each cluster")
	}
	// What one pod needs is a part of what the nodes have.
	m := makeUp(7, false, false)
	m.pods.Items = nil
	all, _, _ := m.read(t)
	some, _, _ := m.read(t, &m.target)
	if a, b := layersKept(all), layersKept(some); b == 0 || b > a*2/3 {
		t.Errorf("%d layers of %d are kept", b, a)
	}
}

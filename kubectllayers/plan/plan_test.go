package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/feasible/feasibletest"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

func digest(letter string) string { return "sha256:" + strings.Repeat(letter, 64) }

var requests, pod, node = feasibletest.Requests, feasibletest.Pod, feasibletest.Node

// layers returns the NodeLayers of a node that has an image of these layers, of so many bytes.
func layers(name, image string, sizes map[string]int64) *v1alpha1.NodeLayers {
	o := &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("uid-" + name)}}},
		Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.Now()},
	}
	held := v1alpha1.NodeImage{Names: []string{image}}
	for _, letter := range []string{"a", "b", "c"} {
		if size, ok := sizes[letter]; ok {
			held.Layers = append(held.Layers, len(o.Spec.Layers))
			o.Spec.Layers = append(o.Spec.Layers, v1alpha1.ImageLayer{Digest: digest(letter), Size: size}.String())
		}
	}
	o.Spec.Images = []string{held.String()}
	return o
}

const mb = 1_000_000

func cluster(t *testing.T) *collect.Cluster {
	t.Helper()
	c := &collect.Cluster{Agents: map[string]collect.Agent{}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(), Now: time.Now()}
	c.Nodes = []*v1.Node{
		node("absent"), node("whole"), node("base"),
		node("cordoned", func(n *v1.Node) { n.Spec.Unschedulable = true }),
	}
	for name, held := range map[string]struct {
		image string
		sizes map[string]int64
	}{
		"whole": {"quay.io/app:1", map[string]int64{"a": 60 * mb, "b": 20 * mb}}, "cordoned": {"quay.io/app:1", map[string]int64{"a": 60 * mb, "b": 20 * mb}},
		"base": {"quay.io/base:1", map[string]int64{"a": 60 * mb}}, "absent": {"quay.io/other:1", map[string]int64{"c": mb}},
	} {
		if err := c.Reports.Add(layers(name, held.image, held.sizes), c.Now); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func target(pod *v1.Pod) *collect.Target {
	return &collect.Target{Kind: "pod", Namespace: pod.Namespace, Name: pod.Name, Pod: pod}
}

func placed(name, on, cpu string) *v1.Pod {
	p := pod("quay.io/other:1")
	p.Name, p.UID, p.Spec.NodeName, p.Spec.Containers[0].Resources = name, types.UID(name), on, requests(cpu)
	return p
}

// Nodes are rated by what they lack: those that the pod fits on first, the least missing first.
func TestOf(t *testing.T) {
	p := pod("quay.io/app:1", "quay.io/unknown\x1b:1")
	c := cluster(t)
	c.Pods = []*v1.Pod{placed("p", "base", "2"), placed("long", "absent", "1")} // p, which does not keep itself away
	c.Nodes[3].Spec.Taints = []v1.Taint{{Key: "k\x1b[2J" + strings.Repeat("k", 1000), Effect: v1.TaintEffectNoExecute}}
	got, err := Of(t.Context(), c, target(p))
	if err != nil {
		t.Fatal(err)
	}
	got.At(8 * mb)
	if got.Of != "pod/p" || got.BitsPerSecond != 8*mb || fmt.Sprint(got.Images) != "[{quay.io/app:1 layers} {quay.io/unknown\uFFFD:1 unknown}]" {
		t.Errorf("%+v", got)
	}
	var lines []string
	for _, n := range got.Nodes {
		lines = append(lines, fmt.Sprintf("%s %d of %d MB there, %d MB missing, %g s %.14q", n.Node, n.PresentBytes/mb, n.TotalBytes/mb, n.MissingBytes/mb, *n.Seconds, n.RuledOut))
	}
	const want = `whole 80 of 80 MB there, 0 MB missing, 0 s []
base 60 of 80 MB there, 20 MB missing, 20 s []
absent 0 of 80 MB there, 80 MB missing, 80 s []
cordoned 80 of 80 MB there, 0 MB missing, 0 s ["taint k` + "\uFFFD" + `[2Jkkk"]`
	if all := strings.Join(lines, "\n"); all != want {
		t.Errorf("%s\nwant %s", all, want)
	}
	if mean, nodes := got.Mean(); mean != 100.0/3*mb || nodes != 3 {
		t.Errorf("%f of %d nodes", mean, nodes)
	}
}

// Without a bandwidth there are no seconds; without nodes or images there is an answer all the same.
func TestOfLittle(t *testing.T) {
	got, err := Of(t.Context(), cluster(t), target(pod("quay.io/app:1")))
	if err != nil || got.Nodes[0].Seconds != nil {
		t.Errorf("%+v, %v", got, err)
	}
	empty := &collect.Cluster{Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic()}
	for _, p := range []*v1.Pod{pod(), pod("quay.io/app:1"), pod("not valid")} {
		got, err := Of(t.Context(), empty, target(p))
		if err != nil || got.Images == nil || got.Nodes == nil || len(got.Images) != len(p.Spec.Containers) || len(got.Nodes) > 0 {
			t.Errorf("%+v, %v", got, err)
		}
		if mean, nodes := got.Mean(); mean != 0 || nodes != 0 {
			t.Errorf("%f of %d nodes", mean, nodes)
		}
	}
}

// A pod that waits on a node for layers makes them arrive there: another does not pull them again.
// That ends after some time, by the clock of the apiserver.
func TestOfArriving(t *testing.T) {
	for _, wrong := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour} {
		for waited, want := range map[time.Duration]int64{time.Minute: 20 * mb, time.Hour: 0} {
			c := cluster(t)
			c.Now = c.Now.Add(wrong)
			waits := placed("waits", "base", "100m")
			waits.Spec.Containers[0].Image = "quay.io/app:1"
			waits.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.Now.Add(-waited))}}
			c.Pods = []*v1.Pod{waits}
			got, err := Of(t.Context(), c, target(pod("quay.io/app:1")))
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(got.Nodes, func(n Node) bool { return n.Node == "base" })
			if n := got.Nodes[at]; n.ArrivingBytes != want || n.MissingBytes != 20*mb-want || n.PendingBytes != want {
				t.Errorf("on a clock that is off by %s, after %s: %+v", wrong, waited, n)
			}
		}
	}
}

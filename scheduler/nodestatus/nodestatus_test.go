package nodestatus

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/index"
)

// node makes a Node that shares its strings with nothing else, as if just decoded.
func node(name string, images ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}}}
	for _, image := range images {
		i := v1.ContainerImage{Names: []string{fmt.Sprintf("quay.io/%s:1", image), fmt.Sprintf("quay.io/%s@sha256:%064x", image, image)}, SizeBytes: 5}
		SetLayers(&i, []index.Layer{{Digest: fmt.Sprintf("sha256:%064x", image), Size: 3}, {Digest: fmt.Sprintf("sha256:%064x", "base"), Size: 2}})
		n.Status.Images = append(n.Status.Images, i)
	}
	return n
}

func apply(t *testing.T, transform cache.TransformFunc, store cache.Store, n *v1.Node) *v1.Node {
	t.Helper()
	obj, err := transform(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Add(obj); err != nil {
		t.Fatal(err)
	}
	return obj.(*v1.Node)
}

func shared(a, b string) bool { return unsafe.StringData(a) == unsafe.StringData(b) }

func TestTransform(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	transform := Transform(store)
	first := apply(t, transform, store, node("n1", "a", "b"))
	if first.ManagedFields != nil {
		t.Error("managed fields are kept")
	}
	if want := node("n1", "a", "b"); !reflect.DeepEqual(first.Status, want.Status) {
		t.Errorf("changed to %+v", first.Status)
	}

	other := apply(t, transform, store, node("n2", "b"))
	if !shared(first.Status.Images[1].Names[0], other.Status.Images[0].Names[0]) {
		t.Error("two nodes do not share a name")
	}
	heartbeat := apply(t, transform, store, node("n1", "a", "b"))
	if &heartbeat.Status.Images[0] != &first.Status.Images[0] {
		t.Error("unchanged images are kept twice")
	}
	changed := apply(t, transform, store, node("n1", "a", "c"))
	if !reflect.DeepEqual(changed.Status, node("n1", "a", "c").Status) {
		t.Errorf("a change got lost: %+v", changed.Status)
	}
	if !shared(first.Status.Images[0].Names[1], changed.Status.Images[0].Names[1]) {
		t.Error("two versions do not share a name")
	}
	if obj, err := transform("something else"); obj != "something else" || err != nil {
		t.Errorf("%v, %v", obj, err)
	}
	if Layers {
		x, y := Images(first)[0].Layers, Images(other)[0].Layers
		if !shared(x[1].Digest, y[1].Digest) {
			t.Error("two nodes do not share a digest")
		}
	}
}

func TestSameImages(t *testing.T) {
	base := node("n", "a", "b")
	for name, test := range map[string]struct {
		change func(*v1.Node)
		same   bool
	}{
		"nothing":   {func(*v1.Node) {}, true},
		"condition": {func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{}} }, true},
		"order":     {func(n *v1.Node) { i := n.Status.Images; i[0], i[1] = i[1], i[0] }, false},
		"fewer":     {func(n *v1.Node) { n.Status.Images = n.Status.Images[:1] }, false},
		"none":      {func(n *v1.Node) { n.Status.Images = nil }, false},
		"name":      {func(n *v1.Node) { n.Status.Images[0].Names[0] = "x" }, false},
		"size":      {func(n *v1.Node) { n.Status.Images[0].SizeBytes++ }, false},
		"layers":    {func(n *v1.Node) { SetLayers(&n.Status.Images[0], []index.Layer{{Digest: "x"}}) }, !Layers},
	} {
		changed := node("n", "a", "b")
		test.change(changed)
		if got := SameImages(base, changed); got != test.same {
			t.Errorf("%s: same %t, want %t", name, got, test.same)
		}
		if SameImages(changed, base) != SameImages(base, changed) {
			t.Errorf("%s: not the same both ways", name)
		}
	}
	if !SameImages(node("n"), node("n")) {
		t.Error("two nodes without images differ")
	}
}

func TestImages(t *testing.T) {
	got := Images(node("n", "a", "b"))
	if len(got) != 2 || got[1].Names[0] != "quay.io/b:1" || got[0].SizeBytes != 5 {
		t.Fatalf("%+v", got)
	}
	if !Layers {
		if len(got[0].Layers) > 0 {
			t.Errorf("layers from nowhere: %+v", got)
		}
		return
	}
	want := []index.Layer{{Digest: fmt.Sprintf("sha256:%064x", "b"), Size: 3}, {Digest: fmt.Sprintf("sha256:%064x", "base"), Size: 2}}
	if !reflect.DeepEqual(got[1].Layers, want) {
		t.Errorf("%+v", got[1].Layers)
	}
}

// containerd states compressed sizes.
func TestCompressed(t *testing.T) {
	for runtime, want := range map[string]bool{"containerd://2.3.1": true, "cri-o://1.36.3": false, "": false} {
		n := node("n", "a")
		n.Status.NodeInfo.ContainerRuntimeVersion = runtime
		if got := Images(n); got[0].Compressed != want || got[0].SizeBytes != 5 {
			t.Errorf("%s: %+v", runtime, got)
		}
	}
}

func TestJoinsDownloads(t *testing.T) {
	for name, test := range map[string]struct {
		labels  map[string]string
		runtime string
		want    *bool
		invalid bool
		stated  *bool
	}{
		"nothing":                  {},
		"CRI-O":                    {runtime: "cri-o://1.36.3"},
		"containerd":               {runtime: "containerd://2.1.4-k3s1", want: ptr.To(true)},
		"one that sounds alike":    {runtime: "containerdish://1.0", want: nil},
		"CRI-O, in series":         {map[string]string{JoinsDownloadsLabel: "true"}, "cri-o://1.36.3", ptr.To(true), false, nil},
		"CRI-O, apart":             {map[string]string{JoinsDownloadsLabel: "false"}, "cri-o://1.36.3", ptr.To(false), false, nil},
		"the label wins":           {map[string]string{JoinsDownloadsLabel: "false"}, "containerd://2.1.4", ptr.To(false), false, nil},
		"another label":            {map[string]string{"joins-downloads": "true"}, "cri-o://1.36.3", nil, false, nil},
		"no value":                 {map[string]string{JoinsDownloadsLabel: ""}, "cri-o://1.36.3", nil, true, nil},
		"what cannot be read":      {map[string]string{JoinsDownloadsLabel: "yes"}, "cri-o://1.36.3", nil, true, nil},
		"the same with containerd": {map[string]string{JoinsDownloadsLabel: "yes"}, "containerd://2.1.4", ptr.To(true), true, nil},
		"an agent states it":       {runtime: "cri-o://1.36.3", stated: ptr.To(true), want: ptr.To(true)},
		"an agent overrides it":    {runtime: "containerd://2.1.4", stated: ptr.To(false), want: ptr.To(false)},
		"the label wins over it":   {map[string]string{JoinsDownloadsLabel: "true"}, "cri-o://1.36.3", ptr.To(true), false, ptr.To(false)},
	} {
		n := node("n")
		n.Labels, n.Status.NodeInfo.ContainerRuntimeVersion = test.labels, test.runtime
		got, err := JoinsDownloads(n, test.stated)
		if !ptr.Equal(got, test.want) || (err != nil) != test.invalid {
			t.Errorf("%s: %v, %v, want %v", name, ptr.Deref(got, false), err, ptr.Deref(test.want, false))
		}
		if want := fmt.Sprintf("label %s=%q of node n: set it to true or false, or remove it", JoinsDownloadsLabel, test.labels[JoinsDownloadsLabel]); err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestPlatform(t *testing.T) {
	n := node("n")
	n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "arm64"}
	if got := Platform(n); got != (index.Platform{OS: "linux", Architecture: "arm64"}) {
		t.Error(got)
	}
}

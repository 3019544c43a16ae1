package main

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// nodeLayers returns the NodeLayers of a node that holds an image of these layers, in the order of
// its manifest.
func nodeLayers(node *v1.Node, reuse v1alpha1.LayerReuse, image string, layers ...string) v1alpha1.NodeLayers {
	sorted := slices.Sorted(slices.Values(layers))
	object := v1alpha1.NodeLayers{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayers"},
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: v1alpha1.NodeLayersSpec{Reuse: reuse, RenewSeconds: 3600, RenewTime: metav1.Now()},
	}
	places := ""
	for _, name := range layers {
		places += fmt.Sprintf(",%d", slices.Index(sorted, name))
	}
	for _, name := range sorted {
		object.Spec.Layers = append(object.Spec.Layers, layer(name).String())
	}
	object.Spec.Images = []string{places[1:] + " docker.io/library/" + image}
	return object
}

// layer returns a layer of 500 MiB.
func layer(name string) v1alpha1.ImageLayer {
	return v1alpha1.ImageLayer{Digest: fmt.Sprintf("sha256:%064x", name), Size: 500 << 20}
}

// TestNodeLayers runs the program on nodes with NodeLayers. A node with the base
// of an image is better than one without. Where containerd keeps the blobs of layers, as it does
// by default and in k3s, a layer is used again whatever is below it; where it drops them
// (discard_unpacked_layers: EKS, kind, Talos), only above the same layers.
func TestNodeLayers(t *testing.T) {
	var nodes []v1.Node
	var names []string
	list := &v1alpha1.NodeLayersList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayersList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
	}
	for _, each := range []struct {
		name   string
		reuse  v1alpha1.LayerReuse
		image  string
		layers []string
	}{
		{"all", v1alpha1.ReuseByDigest, "app:1", []string{"base", "own"}},
		{"kept", v1alpha1.ReuseByDigest, "other:1", []string{"below", "base"}},
		{"dropped", v1alpha1.ReuseInChains, "other:2", []string{"base", "above"}},
		{"dropped-elsewhere", v1alpha1.ReuseInChains, "other:1", []string{"below", "base"}},
		{"silent", "", "", nil},
	} {
		node := nodeWith(each.name, "1Gi", nil)
		node.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		nodes, names = append(nodes, *node), append(names, each.name)
		if each.reuse != "" {
			list.Items = append(list.Items, nodeLayers(node, each.reuse, each.image, each.layers...))
		}
	}
	// The order of its layers, which nodes that use them whatever is below do not report.
	manifest := v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(layer("app").Digest)},
		Spec:       v1alpha1.ImageManifestSpec{Digest: layer("app").Digest, Platform: "linux/amd64", Size: 1000 << 20, Layers: []v1alpha1.ImageLayer{layer("base"), layer("own")}},
		Status:     v1alpha1.ImageManifestStatus{References: []v1alpha1.ImageReference{{Name: "docker.io/library/app:1", Digest: layer("app").Digest, LastConfirmed: ptr.To(metav1.Now())}}},
	}
	kubeconfig := apiserver(t, nodesAnd(map[string]runtime.Object{
		"/apis/layerlocality.io/v1alpha1/nodelayers": list,
		"/apis/layerlocality.io/v1alpha1/imagemanifests": &v1alpha1.ImageManifestList{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifestList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: []v1alpha1.ImageManifest{manifest},
		},
	}, nodes...))
	url := "http://" + start(t, net.IPv4(127, 54, 1, 3), "--kubeconfig="+kubeconfig, "--agents=layers", "--max-score=100")
	ready(t, func() (int, string, error) {
		response, err := http.Get(url + "/readyz")
		if err != nil {
			return 0, "", err
		}
		return response.StatusCode, "", response.Body.Close()
	})
	pod := podWith("p", "", "", "")
	pod.Spec.Containers[0].Image = "app:1"
	got := scores(t, url, "layers", pod, names...)
	all, kept, dropped := got[0], got[1], got[2]
	if all <= kept || kept == 0 || kept != dropped || got[3] != 0 || got[4] != 0 {
		t.Errorf("%v: %v, want the most, the same twice, and 0 twice", names, got)
	}
}

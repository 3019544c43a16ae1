//go:build integration && imagelayers

package integration

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	testutils "k8s.io/kubernetes/test/integration/util"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// serves creates a CRD and waits until its resource is served.
func (c *cluster) serves(file, resource string) (name string) {
	c.t.Helper()
	crd, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Create(c.Ctx, readCRD(c.t, file), metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.eventually(resource+" are served", func() bool {
		return c.ClientSet.CoreV1().RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resource).Do(c.Ctx).Error() == nil
	})
	return crd.Name
}

// report creates the NodeLayers of a node, with an image of layers in that order.
func (c *cluster) report(node *v1.Node, reuse v1alpha1.LayerReuse, renew int32, places string, layers ...string) {
	c.t.Helper()
	o := &v1alpha1.NodeLayers{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayers"},
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: v1alpha1.NodeLayersSpec{
			Reuse: reuse, RenewSeconds: renew, RenewTime: metav1.Now(), Images: []string{places + " docker.io/library/held:1"},
		},
	}
	for _, l := range layers {
		o.Spec.Layers = append(o.Spec.Layers, v1alpha1.ImageLayer{Digest: digest(l), Size: 500 << 20}.String())
	}
	c.post(v1alpha1.NodeLayersResource.Resource, o)
}

// TestNodeLayers: a pod with an image that no node has goes where an agent reports its base.
// What counts is the agent of this Node, as long as it renews its report; and where
// layers are used in chains, only those above the same layers. The resource comes and goes
// while the scheduler runs.
func TestNodeLayers(t *testing.T) {
	c := startCluster(t, only("layers", layerlocality.Name))
	nodes := map[string]*v1.Node{}
	for _, name := range []string{"has-base", "has-base-above", "another-uid", "stale", "empty"} {
		n := st.MakeNode().Name(name).Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "320", v1.ResourceMemory: "500Gi", v1.ResourcePods: "110"}).Obj()
		n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
		created, err := c.ClientSet.CoreV1().Nodes().Create(c.Ctx, n, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nodes[name] = created
	}
	if err := testutils.WaitForNodesInCache(c.Ctx, c.Scheduler, len(nodes)); err != nil {
		t.Fatal(err)
	}
	c.serves(imageManifestsCRD, v1alpha1.ImageManifestsResource.Resource)
	c.elect()
	c.awaits(true)
	onBase := func(name string) (n int) {
		t.Helper()
		for i := range 10 {
			image := fmt.Sprintf("%s-%d:1", name, i)
			c.put(resolved(image))
			if c.node(c.create("layers", image)) == "has-base" {
				n++
			}
		}
		return n
	}
	expect := func(what string, want nodelayers.Stats) {
		t.Helper()
		c.eventually(fmt.Sprintf("%s: %+v", what, want), func() bool { return c.layers.Stats() == want })
	}

	crd := c.serves(nodeLayersCRD, v1alpha1.NodeLayersResource.Resource)
	const hour = 3600
	// Under another layer, the base is another one in a chain.
	c.report(nodes["has-base-above"], v1alpha1.ReuseInChains, hour, "1,0", "base", "below")
	stranger := nodes["another-uid"].DeepCopy()
	stranger.UID = "of the Node before"
	c.report(stranger, v1alpha1.ReuseByDigest, hour, "0", "base")
	c.report(nodes["stale"], v1alpha1.ReuseByDigest, 1, "0", "base")
	expect("one is not renewed", nodelayers.Stats{Fresh: 2, Stale: 1})
	if n := onBase("before"); n == 10 {
		t.Error("all pods went to one node before an agent reported the base there: the test shows nothing")
	}
	c.report(nodes["has-base"], v1alpha1.ReuseByDigest, hour, "0", "base")
	expect("an agent reports it", nodelayers.Stats{Fresh: 3, Stale: 1})
	if n := onBase("after"); n != 10 {
		t.Errorf("%d of 10 pods went to the node with the base", n)
	}

	if err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(c.Ctx, crd, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("all is uninstalled", nodelayers.Stats{})
}

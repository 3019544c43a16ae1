//go:build e2e

package skew

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestUpgrade starts with all components patched and replaces them one at a
// time, while nodes n1, n2 and n3 have an image with layers.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Config{
		Name:    "skew-upgrade",
		Flavour: cluster.Patched,
		// Nodes become NotReady soon enough for a test. Leases are renewed every
		// 10 s.
		ControllerManager: cluster.Component{Args: []string{"--node-monitor-grace-period=30s", "--node-monitor-period=2s"}},
		PerNode: func(node string, _, kubelet *cluster.Component) {
			if node == "n3" {
				gateOff(kubelet)
			}
		},
	})
	one, two := c.push(t, "one:v1", "base", "one"), c.push(t, "two:v1", "base", "two")
	for _, node := range c.Nodes() {
		c.pull(t, node.Name, one)
	}

	// Each has its own node.
	t.Run("nodes", func(t *testing.T) {
		t.Run("validation", func(t *testing.T) {
			t.Parallel()
			testValidation(t, c)
		})
		t.Run("too large", func(t *testing.T) {
			t.Parallel()
			testTooLarge(t, c)
		})
		t.Run("clients", func(t *testing.T) {
			t.Parallel()
			c.wait(t, "n1", one, withLayers)
			testClients(t, c, "n1", one)
		})
		t.Run("kubelet", func(t *testing.T) {
			t.Parallel()
			c.wait(t, "n2", one, withLayers)
			testStockKubelet(t, c, "n2", one, two)
		})
		t.Run("kubelet gate", func(t *testing.T) {
			t.Parallel()
			testKubeletGate(t, c, "n3", one)
		})
	})
	if t.Failed() {
		return // the rest needs nodes in their correct state
	}
	t.Run("controller manager", func(t *testing.T) { testControllerManager(t, c, "n3", "n1", one) })
	if t.Failed() {
		return
	}
	t.Run("apiserver", func(t *testing.T) { testAPIServer(t, c, "n1", "n3", one) })
}

// layer is one entry of a Node's status.images[].layers.
type layer map[string]any

// statusPatch sets the images of a Node to one image with the given layers.
func statusPatch(t *testing.T, layers ...layer) []byte {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"images": []any{map[string]any{"names": []string{"registry.example/a:v1"}, "sizeBytes": 10, "layers": layers}},
	}})
	must(t, err)
	return patch
}

func digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

func many(n int) []layer {
	layers := make([]layer, n)
	for i := range layers {
		layers[i] = layer{"digest": digest(i), "sizeBytes": 1}
	}
	return layers
}

// answer sends a request for the named Node and returns the Node in the
// apiserver's answer. DoRaw would hide the message of an error.
func answer(ctx context.Context, request *rest.Request, node, subresource string) ([]byte, error) {
	request = request.Resource("nodes").Name(node).SetHeader("Accept", "application/json")
	if subresource != "" {
		request = request.SubResource(subresource)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// patch patches the Node, or the subresource if it is not "".
func (c live) patch(ctx context.Context, node, subresource string, kind types.PatchType, patch []byte) ([]byte, error) {
	return answer(ctx, c.client.CoreV1().RESTClient().Patch(kind).Param("fieldManager", "skew").Body(patch), node, subresource)
}

// createNode makes a Node without a kubelet, until the test ends.
func (c live) createNode(t *testing.T, name string) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// testValidation sends layers that no kubelet sends.
func testValidation(t *testing.T, c live) {
	const node = "claims"
	c.createNode(t, node)
	for _, test := range []struct {
		name   string
		layers []layer
		want   string // in the message; "": accepted
	}{
		{"valid", []layer{{"digest": digest(1), "sizeBytes": 5}, {"digest": digest(2)}}, ""},
		{"most an image", many(512), ""},
		{"another algorithm", []layer{{"digest": "blake3:" + strings.Repeat("a", 64)}}, ""},
		{"no digest", []layer{{"sizeBytes": 5}}, "status.images[0].layers[0].digest: Required value"},
		{"no digest by form", []layer{{"digest": digest(1)}, {"digest": "latest"}}, `status.images[0].layers[1].digest: Invalid value: "latest"`},
		{"long digest", []layer{{"digest": "sha512:" + strings.Repeat("a", 129)}}, "status.images[0].layers[0].digest: Too long"},
		{"negative size", []layer{{"digest": digest(1), "sizeBytes": -1}}, "status.images[0].layers[0].sizeBytes: Invalid value: -1"},
		{"too many", many(513), "status.images[0].layers: Too many: 513"},
	} {
		stored, err := c.patch(t.Context(), node, "status", types.StrategicMergePatchType, statusPatch(t, test.layers...))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want == "":
			if list := imagesIn(t, stored); len(list) != 1 || len(list[0].Layers) != len(test.layers) {
				t.Errorf("%s: not stored: %.300s", test.name, stored)
			}
		case !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: got error %v, want an invalid %s", test.name, err, test.want)
		}
	}

	// More than all images of a Node may have, and of the wrong type.
	var list []any
	for range 9 {
		list = append(list, map[string]any{"names": []string{"registry.example/a:v1"}, "layers": many(500)})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"images": list}})
	must(t, err)
	_, err = c.patch(t.Context(), node, "status", types.StrategicMergePatchType, patch)
	if want := "status.images: Too many: 4500"; !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("too many on a node: got error %v, want an invalid %s", err, want)
	}
	_, err = c.patch(t.Context(), node, "status", types.StrategicMergePatchType, statusPatch(t, layer{"digest": digest(1), "sizeBytes": "much"}))
	if err == nil || !strings.Contains(err.Error(), "sizeBytes") {
		t.Errorf("a size that is no number: got error %v, want one that names sizeBytes", err)
	}

	// Refused writes have not replaced what was there.
	got, err := nodeimages.Get(t.Context(), c.client, node)
	must(t, err)
	if len(got) != 1 || len(got[0].Layers) != 1 || !strings.HasPrefix(got[0].Layers[0].Digest, "blake3:") {
		t.Errorf("refused layers were stored: %+v", got)
	}
}

// testClients writes the Node as stock clients do, whose types have no layers. It
// checks the apiserver's answers, because the kubelet soon restores what was
// lost.
func testClients(t *testing.T, c live, node, image string) {
	ctx := t.Context()
	nodes := c.client.CoreV1().Nodes()

	for subresource, patch := range map[string]string{
		"":       `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"skew":"applied"}}}`,
		"status": `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"status":{"conditions":[{"type":"Skew","status":"True"}]}}`,
	} {
		applied, err := c.patch(ctx, node, subresource, types.ApplyPatchType, fmt.Appendf(nil, patch, node))
		must(t, err)
		if err := states(ctx, imagesIn(t, applied), image, withLayers); err != nil {
			t.Errorf("server-side apply of the Node's %q: %v", subresource, err)
		}
	}
	object, err := nodes.Get(ctx, node, metav1.GetOptions{})
	must(t, err)
	applied := 0
	for _, entry := range object.ManagedFields {
		if entry.Manager == "skew" && entry.Operation == metav1.ManagedFieldsOperationApply {
			applied++
		}
	}
	if applied != 2 || object.Labels["skew"] != "applied" || !kubeletOwnsStatus(object) {
		t.Errorf("after server-side apply: labels %v, managed fields %+v", object.Labels, object.ManagedFields)
	}

	// A patch computed from stock types leaves out what these do not have.
	changed := object.DeepCopy()
	for i := range changed.Status.Conditions {
		if changed.Status.Conditions[i].Type == "Skew" {
			changed.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	before, err := json.Marshal(object)
	must(t, err)
	after, err := json.Marshal(changed)
	must(t, err)
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	must(t, err)
	stored, err := c.patch(ctx, node, "status", types.StrategicMergePatchType, patch)
	must(t, err)
	if err := states(ctx, imagesIn(t, stored), image, withLayers); err != nil {
		t.Errorf("strategic merge patch: %v", err)
	}

	// An update drops them.
	livetest.Eventually(t, time.Minute, "typed update of the status", func(ctx context.Context) error {
		object, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		stored, err = answer(ctx, c.client.CoreV1().RESTClient().Put().Body(object), node, "status")
		return err // sometimes a conflict with the kubelet
	})
	if err := states(ctx, imagesIn(t, stored), image, withoutLayers); err != nil {
		t.Errorf("a typed update was thought to drop layers: %v", err)
	}
	c.wait(t, node, image, withLayers)
	if n := logged(t, c.Node(node).Kubelet(), refusalMessage); n != 0 {
		t.Errorf("the kubelet gave up reporting layers because of another client")
	}
}

// testStockKubelet replaces the node's kubelet with a stock one, and back.
func testStockKubelet(t *testing.T, c live, node, image, another string) {
	kubelet := c.Node(node).Kubelet()
	must(t, kubelet.Restart(t.Context(), stock))
	livetest.Eventually(t, settled, "the Node has the version of the stock kubelet", func(ctx context.Context) error {
		object, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && strings.Contains(object.Status.NodeInfo.KubeletVersion, "layerlocality") {
			err = fmt.Errorf("its version is %s", object.Status.NodeInfo.KubeletVersion)
		}
		return err
	})
	// Whether the layers are still there depends on whether it had listed its
	// images when it first computed a status. After a change they are certainly
	// gone.
	c.pull(t, node, another)
	c.wait(t, node, another, withoutLayers)
	c.check(t, node, image, withoutLayers)

	must(t, kubelet.Restart(t.Context(), patched))
	c.wait(t, node, another, withLayers)
	c.check(t, node, image, withLayers)
}

// testKubeletGate turns the gate on in a kubelet whose gate was off.
func testKubeletGate(t *testing.T, c live, node, image string) {
	c.wait(t, node, image, withoutLayers)
	must(t, c.Node(node).Kubelet().Restart(t.Context(), patched))
	c.wait(t, node, image, withLayers)
}

// testControllerManager stops kubelets, so that the controller manager writes
// the status of their Nodes: a patched one that of the first Node, a stock one
// that of the second. The kubelet of the first Node stays down.
func testControllerManager(t *testing.T, c live, first, second, image string) {
	ctx := t.Context()
	must(t, c.Node(first).Kubelet().Stop(ctx))
	c.waitUnreachable(t, first)
	c.check(t, first, image, withLayers)

	must(t, c.ControllerManager().Restart(ctx, stock))
	must(t, c.Node(second).Kubelet().Stop(ctx))
	c.waitUnreachable(t, second)
	c.check(t, second, image, withoutLayers)
	must(t, c.Node(second).Kubelet().Start(ctx))
	c.waitReady(t, second, corev1.ConditionTrue)
	c.wait(t, second, image, withLayers)
	c.check(t, first, image, withLayers)
	// From now on, only kubelets and this test may write Nodes.
	must(t, c.ControllerManager().Stop(ctx))
}

// waitUnreachable waits until the controller manager has noticed that the
// kubelet is gone, and has acted on it.
func (c live) waitUnreachable(t *testing.T, name string) {
	t.Helper()
	c.waitReady(t, name, corev1.ConditionUnknown)
	livetest.Eventually(t, time.Minute, fmt.Sprintf("node %s has the taint", name), func(ctx context.Context) error {
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoSchedule
		}) {
			return fmt.Errorf("taints: %v", node.Spec.Taints)
		}
		return nil
	})
}

// testAPIServer replaces the apiserver with a stock one and back, then with one
// with the gate off. Meanwhile the kubelet of live writes its Node; nothing
// writes that of idle.
func testAPIServer(t *testing.T, c live, live, idle, image string) {
	ctx := t.Context()
	c.check(t, live, image, withLayers)
	c.check(t, idle, image, withLayers)
	before, err := c.client.CoreV1().Nodes().Get(ctx, idle, metav1.GetOptions{})
	must(t, err)

	c.replaceAPIServer(t, stock)
	checkReadable(t, c, before)
	c.check(t, idle, image, withoutLayers)
	// The kubelet compares its status with the Node of its informer. One that
	// goes on at the last version it saw has a Node with layers until the next
	// write of any kind, after five minutes at most.
	_, err = c.patch(ctx, live, "", types.MergePatchType, []byte(`{"metadata":{"labels":{"skew":"stock"}}}`))
	must(t, err)
	livetest.Eventually(t, settled, "the kubelet finds out", func(context.Context) error {
		if n := logged(t, c.Node(live).Kubelet(), refusalMessage); n != 1 {
			return fmt.Errorf("%d lines about it in its log", n)
		}
		return nil
	})
	c.check(t, live, image, withoutLayers)

	// The Node that was not written still has its layers. The other one lost
	// them, and gets them back when the kubelet tries again: at once after a
	// restart, else within ten minutes.
	c.replaceAPIServer(t, patched)
	c.check(t, idle, image, withLayers)
	c.check(t, live, image, withoutLayers)
	must(t, c.Node(live).Kubelet().Restart(ctx))
	c.wait(t, live, image, withLayers)

	// With the gate off, stored layers stay and no others are accepted.
	c.replaceAPIServer(t, gateOff)
	for _, node := range []string{live, idle} {
		_, err := c.patch(ctx, node, "", types.MergePatchType, []byte(`{"metadata":{"labels":{"skew":"gate-off"}}}`))
		must(t, err)
		_, err = c.patch(ctx, node, "status", types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Skew","status":"True"}]}}`))
		must(t, err)
		c.check(t, node, image, withLayers)
	}
	c.createNode(t, "late")
	stored, err := c.patch(ctx, "late", "status", types.StrategicMergePatchType, statusPatch(t, layer{"digest": digest(1), "sizeBytes": 5}))
	must(t, err)
	if list := imagesIn(t, stored); len(list) != 1 || len(list[0].Layers) != 0 {
		t.Errorf("an apiserver with the gate off made of new layers: %+v", list)
	}
}

// checkReadable reads Nodes with stock clients, in both encodings, from a stock
// apiserver whose storage has layers.
func checkReadable(t *testing.T, c live, want *corev1.Node) {
	t.Helper()
	for _, encoding := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		config, err := c.RESTConfig()
		must(t, err)
		config.ContentType = encoding
		client, err := kubernetes.NewForConfig(config)
		must(t, err)
		if err := readable(t.Context(), client, want); err != nil {
			t.Errorf("%s: %v", encoding, err)
		}
	}
}

func readable(ctx context.Context, client kubernetes.Interface, want *corev1.Node) error {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) != 3 {
		return fmt.Errorf("%d nodes instead of 3", len(list.Items))
	}
	for _, node := range list.Items {
		if node.Name == want.Name {
			if err := same(&node, want); err != nil {
				return fmt.Errorf("list: %w", err)
			}
		}
	}

	// A watch begins with the existing objects.
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	events, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		if !ok || event.Type == watch.Error {
			return fmt.Errorf("watch: %+v", event)
		}
		if node.Name == want.Name {
			return same(node, want)
		}
	}
	return errors.New("the watch ended without the node")
}

func same(got, want *corev1.Node) error {
	// A stock type has no layers, so these are all fields.
	g, err := json.Marshal([]any{got.UID, got.Status, got.ManagedFields})
	if err != nil {
		return err
	}
	w, err := json.Marshal([]any{want.UID, want.Status, want.ManagedFields})
	if err != nil {
		return err
	}
	if string(g) != string(w) {
		return fmt.Errorf("node %s is\n%s\nand was\n%s", got.Name, g, w)
	}
	return nil
}

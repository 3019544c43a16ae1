//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestScale pulls 300 images to n3. All of them must be in every list; the
// Node must report as many layers as fit, and then not be written again.
func TestScale(t *testing.T) {
	livetest.Long(t, "TestFormats, and the unit tests of kubelet/imagelayers for Nodes that are full")
	t.Parallel()
	node := c.Node("n3")
	pod := runPod(t, node)

	const count = 300
	sizes := make([]int64, 12)
	for i := range sizes {
		sizes[i] = int64(20_000 + 1000*i)
	}
	base := layers("scale-base", sizes...)
	references := make([]string, count)
	begin := time.Now()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for i := range references {
		references[i] = reference(fmt.Sprintf("scale/image-%d:v1", i))
		group.Go(func() error {
			// The first layers of the base, and its own layer.
			image, err := images.Build(images.Image{
				Entrypoint: []string{"/none"},
				Layers:     append(base[:i%(len(base)+1):i%(len(base)+1)], images.Layer{Name: fmt.Sprintf("scale-%d", i), Size: int64(500 + i)}),
			})
			if err != nil {
				return err
			}
			if _, err := images.Push(ctx, references[i], image); err != nil {
				return err
			}
			_, err = livetest.Pull(ctx, node, references[i])
			return err
		})
	}
	must(t, group.Wait())
	t.Logf("pushed and pulled %d images in %.0f s", count, time.Since(begin).Seconds())
	references = append(references, pod)

	t.Run("CRI", func(t *testing.T) {
		for where, list := range lists(t, node) {
			if want := count + 2; len(list) != want { // including the pause image
				t.Errorf("%s has %d images, want %d", where, len(list), want)
			}
		}
		checkCRI(t, node, references...)
	})
	t.Run("node", func(t *testing.T) {
		waitCapped(t, node, 64<<10, registryLayers(t, append(references, reference("pause:1"))...))
		checkManagedFields(t, node.Name)
	})
	t.Run("no write without a change", func(t *testing.T) { testUnchanged(t, node) })
}

// testUnchanged watches the Node for so long that the kubelet lists images at
// least once and computes its status 30 times.
func testUnchanged(t *testing.T, node *cluster.Node) {
	const window = 35 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	nodes := client.CoreV1().Nodes()
	before, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
	must(t, err)
	events, err := nodes.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", node.Name).String(),
		ResourceVersion: before.ResourceVersion,
	})
	must(t, err)
	defer events.Stop()
	for event := range events.ResultChan() {
		after, ok := event.Object.(*corev1.Node)
		switch {
		case !ok || event.Type != watch.Modified:
			t.Errorf("watch: %v %v", event.Type, event.Object)
			continue
		case !reflect.DeepEqual(conditions(before), conditions(after)):
			t.Logf("a condition or taint changed, on a busy machine one may: %v, then %v", conditions(before), conditions(after))
		default:
			t.Errorf("written although nothing changed: resource version %s, then %s; managed fields before %v, after %v",
				before.ResourceVersion, after.ResourceVersion, before.ManagedFields, after.ManagedFields)
		}
		before = after
	}
	if ctx.Err() == nil {
		t.Fatal("the watch ended early")
	}
	// Still, the kubelet is alive.
	must(t, c.WaitNodeReady(t.Context(), node.Name))
	now := time.Now()
	livetest.Eventually(t, 3*time.Minute, "the kubelet renews its lease", func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases("kube-node-lease").Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime.Time.Before(now) {
			err = fmt.Errorf("it did so at %s", lease.Spec.RenewTime)
		}
		return err
	})
}

// conditions returns the parts of a Node that a starved kubelet changes: its
// conditions, without times, and the taints that follow from them.
func conditions(node *corev1.Node) map[string]string {
	all := map[string]string{}
	for _, condition := range node.Status.Conditions {
		all[string(condition.Type)] = string(condition.Status)
	}
	for _, taint := range node.Spec.Taints {
		all["taint "+taint.Key] = string(taint.Effect)
	}
	return all
}

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// settled is the time after which a Node must report what its CRI-O has: the
// kubelet lists images every 30 s; the rest is for a busy machine.
const settled = 75 * time.Second

var (
	c      *cluster.Cluster
	client kubernetes.Interface
)

// decryptionKeys is where n1 looks for keys of encrypted images, at each pull.
var decryptionKeys = filepath.Join(folder.Default("e2e"), "keys")

func TestMain(m *testing.M) {
	// The three tests wait for three nodes, however few processors there are.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	config := cluster.Config{
		Name:    "e2e",
		Flavour: cluster.Patched,
		Kubelet: cluster.Component{
			Config: map[string]any{
				// Ten times as often as usual, so that tests wait less and a
				// needless write shows soon.
				"nodeStatusUpdateFrequency": "1s",
				"nodeStatusReportFrequency": "1h",
				"nodeStatusMaxImages":       -1,
				// Report all layers, however small the images of a test are.
				"nodeStatusImageLayersMinBytes":    0,
				"nodeStatusImageLayersMaxPerImage": 512,
			},
		},
		PerNode: func(node string, crio, kubelet *cluster.Component) {
			switch node {
			case "n1":
				crio.Config = map[string]any{"crio": map[string]any{"runtime": map[string]any{"decryption_keys_path": decryptionKeys}}}
			case "n2":
				crio.Flavour = cluster.Stock // TestLifecycle upgrades it
			case "n3":
				kubelet.FeatureGates = map[string]bool{"CRIListStreaming": true} // by StreamImages
			}
		},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if client, err = c.Client(); err != nil {
			panic(err)
		}
	}))
}

var must = testkit.Must

// reference returns the name of an image in the cluster's registry.
func reference(name string) string { return c.Registry().Address + "/" + name }

// build makes an image that is not meant to run: it has only the given
// layers.
func build(t testing.TB, spec images.Image) v1.Image {
	t.Helper()
	if spec.Entrypoint == nil {
		spec.Entrypoint = []string{"/none"}
	}
	image, err := images.Build(spec)
	must(t, err)
	return image
}

func push(t testing.TB, name string, what remote.Taggable) *images.Pushed {
	t.Helper()
	pushed, err := images.Push(t.Context(), reference(name), what)
	must(t, err)
	return pushed
}

// layers makes layers that no image of another prefix has.
func layers(prefix string, sizes ...int64) []images.Layer {
	all := make([]images.Layer, len(sizes))
	for i, size := range sizes {
		all[i] = images.Layer{Name: fmt.Sprintf("%s-%d", prefix, i), Size: size}
	}
	return all
}

// pull makes CRI-O pull images, a few at a time.
func pull(t testing.TB, node *cluster.Node, references ...string) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for _, reference := range references {
		group.Go(func() error {
			_, err := livetest.Pull(ctx, node, reference)
			return err
		})
	}
	must(t, group.Wait())
}

// registryLayers reads from the registry the layers that must be reported for
// images.
func registryLayers(t testing.TB, references ...string) map[string]livetest.Layers {
	t.Helper()
	all := make([]livetest.Layers, len(references))
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i, reference := range references {
		group.Go(func() (err error) {
			all[i], err = livetest.FromRegistry(ctx, reference)
			return err
		})
	}
	must(t, group.Wait())
	byName := map[string]livetest.Layers{}
	for i, reference := range references {
		byName[reference] = all[i]
	}
	return byName
}

// checkCRI compares everything that CRI-O reports of images with the
// registry.
func checkCRI(t testing.TB, node *cluster.Node, references ...string) {
	t.Helper()
	checkCRIHas(t, node, registryLayers(t, references...))
}

// checkCRIHas checks that every answer of CRI-O has exactly these layers of the
// images.
func checkCRIHas(t testing.TB, node *cluster.Node, want map[string]livetest.Layers) {
	t.Helper()
	all := lists(t, node)
	for reference := range want {
		for where, list := range all {
			checkListed(t, where, list, reference, want[reference])
		}
		one, err := livetest.ListOne(t.Context(), node, reference)
		must(t, err)
		if len(one) != 1 {
			t.Errorf("%s: filtered list: %d images instead of one for %s", node.Name, len(one), reference)
		}
		checkListed(t, node.Name+": filtered list", one, reference, want[reference])

		byName := statusOf(t, node, reference)
		for _, status := range []*runtimeapi.Image{byName, statusOf(t, node, byName.GetId())} {
			got, _, err := livetest.FromCRI(status)
			if err != nil {
				t.Errorf("%s: ImageStatus: %v", node.Name, err)
			} else if diff := livetest.Diff(got, want[reference]); diff != "" {
				t.Errorf("%s: ImageStatus of %s:%s", node.Name, reference, diff)
			}
		}
	}
}

// lists returns all images, listed in three ways.
func lists(t testing.TB, node *cluster.Node) map[string][]*runtimeapi.Image {
	t.Helper()
	ctx := t.Context()
	list, err := livetest.List(ctx, node)
	must(t, err)
	stream, err := livetest.Stream(ctx, node)
	must(t, err)
	crictl, err := livetest.Crictl(ctx, node)
	must(t, err)
	return map[string][]*runtimeapi.Image{
		node.Name + ": ListImages":            list,
		node.Name + ": StreamImages":          stream,
		node.Name + ": crictl images -o json": crictl,
	}
}

func checkListed(t testing.TB, where string, list []*runtimeapi.Image, reference string, want livetest.Layers) {
	t.Helper()
	image := livetest.FindCRI(list, reference)
	if image == nil {
		t.Errorf("%s lacks %s", where, reference)
		return
	}
	got, others, err := livetest.FromCRI(image)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	if len(others) > 0 {
		t.Errorf("%s: %s has annotations that are no layers: %v", where, reference, others)
	}
	if diff := livetest.Diff(got, want); diff != "" {
		t.Errorf("%s: %s:%s", where, reference, diff)
	}
}

func statusOf(t testing.TB, node *cluster.Node, reference string) *runtimeapi.Image {
	t.Helper()
	status, err := livetest.Status(t.Context(), node, reference)
	must(t, err)
	if status == nil {
		t.Fatalf("%s: ImageStatus has no %s", node.Name, reference)
	}
	return status
}

// waitNode waits until the Node reports these layers of these images.
func waitNode(t testing.TB, node *cluster.Node, want map[string]livetest.Layers) {
	t.Helper()
	livetest.Eventually(t, settled, fmt.Sprintf("Node %s states %d images", node.Name, len(want)), func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, client, node.Name)
		if err != nil {
			return err
		}
		return nodeHas(list, want)
	})
}

func nodeHas(list []nodeimages.Image, want map[string]livetest.Layers) error {
	var errs []error
	for _, reference := range slices.Sorted(maps.Keys(want)) {
		image, ok := livetest.FindNode(list, reference)
		if !ok {
			errs = append(errs, fmt.Errorf("no image %s", reference))
			continue
		}
		got, err := livetest.FromNode(image)
		if err != nil {
			return err
		}
		if diff := livetest.Diff(got, want[reference]); diff != "" {
			errs = append(errs, fmt.Errorf("%s:%s", reference, diff))
		}
	}
	return errors.Join(errs...)
}

// waitNodeRegistry waits until the Node reports all layers of these images.
func waitNodeRegistry(t testing.TB, node *cluster.Node, references ...string) {
	t.Helper()
	waitNode(t, node, registryLayers(t, references...))
}

// runPod runs a pod on the node until the end of the test, and returns its
// image.
func runPod(t testing.TB, node *cluster.Node) (image string) {
	t.Helper()
	built, err := images.Build(images.Image{Layers: layers("pod-"+node.Name, 100_000)})
	must(t, err)
	image = push(t, "pod/"+node.Name+":v1", built).Reference
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	name := "on-" + node.Name
	_, err = pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:   node.Name,
			Containers: []corev1.Container{{Name: "main", Image: image}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, c.WaitPodRunning(t.Context(), metav1.NamespaceDefault, name))
	t.Cleanup(func() {
		// Restarts and crashes must not have changed it.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		for _, container := range pod.Status.ContainerStatuses {
			if !container.Ready || container.RestartCount != 0 {
				t.Errorf("pod %s is %s, its container: %+v", name, pod.Status.Phase, container)
			}
		}
	})
	return image
}

// checkManagedFields checks that the Node still states who set which field. The
// apiserver drops all of this when it finds a field that is in no schema.
func checkManagedFields(t testing.TB, name string) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	for _, entry := range node.ManagedFields {
		if entry.Manager == "kubelet" && entry.Subresource == "status" {
			// The list is atomic: it has one owner, and no fields of its own.
			if fields := entry.FieldsV1.GetRawString(); !strings.Contains(fields, `"f:images":{}`) {
				t.Errorf("node %s: the kubelet does not own status.images as a whole: %s", name, fields)
			}
			return
		}
	}
	t.Errorf("node %s: no managed fields of the kubelet's status: %+v", name, node.ManagedFields)
}

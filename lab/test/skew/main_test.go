//go:build e2e

package skew

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// settled is the time after which a Node must report what its CRI-O has: the
// kubelet lists images every 30 s and computes its status every 10 s; the rest is
// for a busy machine.
const settled = 90 * time.Second

func TestMain(m *testing.M) {
	// Tests wait for clusters and nodes, however few processors there are.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// live is a running cluster.
type live struct {
	*cluster.Cluster
	client kubernetes.Interface
}

// start starts a cluster, which ends with the test. The logs of its components
// stay in _out/test/logs/<name>.
func start(t *testing.T, config cluster.Config) live {
	t.Helper()
	logs, err := filepath.Abs(filepath.Join("..", "..", "..", "_out", "test", "logs", config.Name))
	must(t, err)
	must(t, os.RemoveAll(logs))
	must(t, os.MkdirAll(logs, 0o755))
	config.LogDir = logs
	config.Logf = t.Logf
	c := livetest.StartFor(t, config)
	client, err := c.Client()
	must(t, err)
	return live{c, client}
}

var must = testkit.Must

// push makes an image with layers that the kubelet reports, base first.
func (c live) push(t *testing.T, name string, layers ...string) (reference string) {
	t.Helper()
	spec := images.Image{Entrypoint: []string{"/none"}} // it is not meant to run
	for i, layer := range layers {
		spec.Layers = append(spec.Layers, images.Layer{Name: layer, Size: int64(i+2) << 20})
	}
	return livetest.Push(t, c.Registry().Address+"/"+name, spec).Reference
}

func (c live) pull(t *testing.T, node, reference string) {
	t.Helper()
	_, err := livetest.Pull(t.Context(), c.Node(node), reference)
	must(t, err)
}

// replaceAPIServer restarts the apiserver with changed settings. The running one
// is killed, because a graceful end would wait 30 s for its watches.
func (c live) replaceAPIServer(t *testing.T, change func(*cluster.Component)) {
	t.Helper()
	must(t, c.APIServer().Kill(t.Context()))
	must(t, c.APIServer().Start(t.Context(), change))
}

// What a Node may state about an image.
const (
	withLayers    = "with all its layers"
	withoutLayers = "without layers"
	absent        = "not at all"
)

// states checks that the list of images has the image in the given way.
func states(ctx context.Context, list []nodeimages.Image, reference, how string) error {
	image, found := livetest.FindNode(list, reference)
	if how == absent {
		if found {
			return fmt.Errorf("%s is there, with %d layers", reference, len(image.Layers))
		}
		return nil
	}
	if !found {
		return fmt.Errorf("%s is not among %d images", reference, len(list))
	}
	if image.SizeBytes <= 0 {
		return fmt.Errorf("%s has a size of %d", reference, image.SizeBytes)
	}
	want := livetest.Layers{}
	if how == withLayers {
		var err error
		if want, err = livetest.FromRegistry(ctx, reference); err != nil {
			return err
		}
	}
	got, err := livetest.FromNode(image)
	if err != nil {
		return err
	}
	if diff := livetest.Diff(got, want); diff != "" {
		return fmt.Errorf("%s:%s", reference, diff)
	}
	return nil
}

// check reads the Node, which must have the image in the given way now.
func (c live) check(t *testing.T, node, reference, how string) {
	t.Helper()
	list, err := nodeimages.Get(t.Context(), c.client, node)
	must(t, err)
	if err := states(t.Context(), list, reference, how); err != nil {
		t.Errorf("node %s, to state %s %s: %v", node, reference, how, err)
	}
	c.checkManagedFields(t, node)
}

// wait waits until the Node has the image in the given way.
func (c live) wait(t *testing.T, node, reference, how string) {
	t.Helper()
	livetest.Eventually(t, settled, fmt.Sprintf("node %s states %s %s", node, reference, how), func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, c.client, node)
		if err != nil {
			return err
		}
		return states(ctx, list, reference, how)
	})
	c.checkManagedFields(t, node)
}

// checkManagedFields checks that the Node still states who set which field. The
// apiserver drops all of this when it finds a field that is in no schema.
func (c live) checkManagedFields(t *testing.T, name string) {
	t.Helper()
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	if !kubeletOwnsStatus(node) {
		t.Errorf("node %s: the kubelet's entry for the status is not among the managed fields: %+v", name, node.ManagedFields)
	}
}

func kubeletOwnsStatus(node *corev1.Node) bool {
	for _, entry := range node.ManagedFields {
		if entry.Manager == "kubelet" && entry.Subresource == "status" && entry.Operation == metav1.ManagedFieldsOperationUpdate &&
			entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:conditions"`) {
			return true
		}
	}
	return false
}

// waitReady waits until the Ready condition of the Node has the status.
func (c live) waitReady(t *testing.T, name string, want corev1.ConditionStatus) {
	t.Helper()
	livetest.Eventually(t, 2*time.Minute, fmt.Sprintf("node %s has Ready=%s", name, want), func(ctx context.Context) error {
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == want {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", node.Status.Conditions)
	})
}

// imagesIn reads the images from the JSON of a Node, the apiserver's answer to a
// write, before anything else writes the Node.
func imagesIn(t *testing.T, node []byte) []nodeimages.Image {
	t.Helper()
	var object struct {
		Kind   string `json:"kind"`
		Status struct {
			Images []nodeimages.Image `json:"images"`
		} `json:"status"`
	}
	must(t, json.Unmarshal(node, &object))
	if object.Kind != "Node" {
		t.Fatalf("not a Node: %s", node)
	}
	return object.Status.Images
}

// logged counts the lines of a component's log with the text.
func logged(t *testing.T, p *cluster.Process, text string) int {
	t.Helper()
	log, err := os.ReadFile(p.Log())
	must(t, err)
	n := 0
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte(text)) {
			n++
		}
	}
	return n
}

// The kubelet's log message when an apiserver did not keep its layers.
const refusalMessage = "The API server does not keep the layers of images"

// stock makes a component the stock one, without settings that stock does not
// have.
func stock(settings *cluster.Component) {
	settings.Flavour = cluster.Stock
	delete(settings.FeatureGates, cluster.LayersGate)
}

// patched undoes stock. The gate is on.
func patched(settings *cluster.Component) {
	settings.Flavour = cluster.Patched
	delete(settings.FeatureGates, cluster.LayersGate)
}

// gateOff makes a component the patched one, with the gate off.
func gateOff(settings *cluster.Component) {
	settings.Flavour = cluster.Patched
	if settings.FeatureGates == nil {
		settings.FeatureGates = map[string]bool{}
	}
	settings.FeatureGates[cluster.LayersGate] = false
}

var errNotYet = errors.New("not yet")

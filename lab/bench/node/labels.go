package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
)

// The Node whose labels are written: as many images as a kubelet reports, and
// the layers of a node with large images.
const (
	labelImages = 50
	labelLayers = 400
)

// LabelWrites is how long writes of one label of a Node take, in nanoseconds.
// They go round robin, so that whatever else the machine does hits all alike, and
// as many to each kube-apiserver.
type LabelWrites struct {
	// Stock are those to a stock kube-apiserver, of two Nodes without layers.
	Stock []time.Duration `json:"stock"`
	// Without are those to the patched one, of a Node without layers.
	Without []time.Duration `json:"patchedWithoutLayers"`
	// With are those to the patched one, of a Node with labelLayers layers.
	With []time.Duration `json:"patchedWithLayers"`
}

// ratio compares the medians with layers and of stock.
func (w *LabelWrites) ratio() float64 {
	return float64(median(w.With)) / float64(median(w.Stock))
}

func median(durations []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(durations))[len(durations)/2]
}

func (w *LabelWrites) write(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "write of a label of a Node with %d images, median of at least %d\tms\tof stock\n", labelImages, len(w.With))
	for _, row := range []struct {
		name   string
		writes []time.Duration
	}{
		{"stock kube-apiserver", w.Stock},
		{"patched, no layers", w.Without},
		{fmt.Sprintf("patched, %d layers", labelLayers), w.With},
	} {
		fmt.Fprintf(table, "%s\t%.3f\t%.2f\n", row.name, float64(median(row.writes).Microseconds())/1000, float64(median(row.writes))/float64(median(w.Stock)))
	}
	return table.Flush()
}

// measureLabelWrites starts a stock and a patched kube-apiserver, each with its
// own etcd, and writes a label of a Node of each in turns. The working directory
// must be the root of the repository.
func measureLabelWrites(ctx context.Context, config Config) (_ *LabelWrites, err error) {
	config.Logf("starting a stock and a patched kube-apiserver")
	var targets []*labelTarget
	writes := &LabelWrites{}
	for _, plane := range []struct {
		settings controlplane.Settings
		nodes    []labelNode
	}{
		{
			controlplane.Settings{Stock: true, NoFsync: true},
			[]labelNode{{"one", 0, &writes.Stock}, {"two", 0, &writes.Stock}},
		},
		{
			controlplane.Settings{FeatureGates: "NodeStatusImageLayers=true", NoFsync: true},
			[]labelNode{{"one", 0, &writes.Without}, {"two", labelLayers, &writes.With}},
		},
	} {
		running, startErr := controlplane.StartWith(".", plane.settings)
		if startErr != nil {
			return nil, startErr
		}
		defer func() { err = errors.Join(err, running.Stop()) }()
		// As controllers do.
		running.Config.ContentType = runtime.ContentTypeProtobuf
		for _, node := range plane.nodes {
			target, err := newLabelTarget(ctx, running.Config, node)
			if err != nil {
				return nil, err
			}
			targets = append(targets, target)
		}
	}
	const warmUp = 100
	config.Logf("writing a label %d times", config.Labels)
	for i := range warmUp + config.Labels {
		for _, target := range targets {
			took, err := target.write(ctx, i)
			if err != nil {
				return nil, err
			}
			if i >= warmUp {
				*target.node.durations = append(*target.node.durations, took)
			}
		}
	}
	return writes, nil
}

// labelNode is a Node to make, and where the durations of its writes go.
type labelNode struct {
	name      string
	layers    int
	durations *[]time.Duration
}

// labelTarget is a Node whose labels are written.
type labelTarget struct {
	client kubernetes.Interface
	node   labelNode
}

func newLabelTarget(ctx context.Context, config *rest.Config, node labelNode) (*labelTarget, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.name}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"images": imagesWithLayers(node.layers)}})
	if err != nil {
		return nil, err
	}
	if _, err := nodes.Patch(ctx, node.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return nil, err
	}
	stored, err := nodeimages.Get(ctx, client, node.name)
	if err != nil {
		return nil, err
	}
	got := 0
	for _, image := range stored {
		got += len(image.Layers)
	}
	if len(stored) != labelImages || got != node.layers {
		return nil, fmt.Errorf("the Node has %d images with %d layers instead of %d with %d", len(stored), got, labelImages, node.layers)
	}
	return &labelTarget{client, node}, nil
}

// imagesWithLayers returns images as in the status of a Node, with the names that
// a tag and a digest give, and equally many layers.
func imagesWithLayers(layers int) []map[string]any {
	digest := func(n int) string { return fmt.Sprintf("sha256:%064x", n) }
	images := make([]map[string]any, labelImages)
	for i := range images {
		repository := fmt.Sprintf("registry.example.com/team-%d/image-%d", i%7, i)
		images[i] = map[string]any{"names": []string{repository + "@" + digest(i), repository + ":v1"}, "sizeBytes": 100<<20 + i}
	}
	for i := range layers {
		image := images[i%labelImages]
		list, _ := image["layers"].([]map[string]any)
		image["layers"] = append(list, map[string]any{"digest": digest(1000 + i), "sizeBytes": 10<<20 + i})
	}
	return images
}

func (t *labelTarget) write(ctx context.Context, i int) (time.Duration, error) {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"bench":"%d"}}}`, i)
	begin := time.Now()
	_, err := t.client.CoreV1().Nodes().Patch(ctx, t.node.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return time.Since(begin), err
}

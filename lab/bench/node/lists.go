package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
)

const (
	// listLayers of a Node: about what 50 real images have of layers that are reported.
	listLayers = 200
	// listRounds is how often all Nodes are listed in each form.
	listRounds = 5
	// creators write Nodes at a time.
	creators = 16
)

// Lists are what lists of all Nodes take, with layers and without.
type Lists struct {
	Nodes   int  `json:"nodes"`
	Without List `json:"withoutLayers"`
	With    List `json:"withLayers"`
}

// List is what a list of all Nodes takes of one kube-apiserver.
type List struct {
	Layers int `json:"layers"` // of each Node
	// Protobuf and JSON are the bytes of an answer, not compressed.
	Protobuf int `json:"protobufBytes"`
	JSON     int `json:"jsonBytes"`
	// Cached are lists in protobuf from the apiserver's cache, as informers begin with;
	// Current those that ask for the newest state, JSON those in JSON.
	Cached   []time.Duration `json:"cached"`
	Current  []time.Duration `json:"current"`
	JSONTook []time.Duration `json:"json"`
	// Memory and Heap are the apiserver's resident memory and heap before the lists, Peak
	// the resident memory after one of them at most, in bytes.
	Memory int64 `json:"memory"`
	Heap   int64 `json:"heap"`
	Peak   int64 `json:"peak"`
}

func (l *Lists) write(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "list of %d Nodes with %d images\tno layers\t%d layers each\tx\n", l.Nodes, labelImages, l.With.Layers)
	for _, row := range []struct {
		name          string
		without, with float64
	}{
		{"protobuf (MB)", float64(l.Without.Protobuf) / 1e6, float64(l.With.Protobuf) / 1e6},
		{"JSON (MB)", float64(l.Without.JSON) / 1e6, float64(l.With.JSON) / 1e6},
		{"from the cache, protobuf (ms)", milliseconds(median(l.Without.Cached)), milliseconds(median(l.With.Cached))},
		{"newest state, protobuf (ms)", milliseconds(median(l.Without.Current)), milliseconds(median(l.With.Current))},
		{"from the cache, JSON (ms)", milliseconds(median(l.Without.JSONTook)), milliseconds(median(l.With.JSONTook))},
		{"kube-apiserver, heap before the lists (MiB)", float64(l.Without.Heap) / (1 << 20), float64(l.With.Heap) / (1 << 20)},
		{"resident before the lists (MiB)", float64(l.Without.Memory) / (1 << 20), float64(l.With.Memory) / (1 << 20)},
		{"resident after them, at most (MiB)", float64(l.Without.Peak) / (1 << 20), float64(l.With.Peak) / (1 << 20)},
	} {
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.2f\n", row.name, row.without, row.with, row.with/row.without)
	}
	return table.Flush()
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// measureLists lists Nodes without layers of one patched kube-apiserver, and with layers
// of another. The working directory must be the root of the repository.
func measureLists(ctx context.Context, config Config) (*Lists, error) {
	lists := &Lists{Nodes: config.ListNodes}
	for _, target := range []struct {
		layers int
		list   *List
	}{{0, &lists.Without}, {listLayers, &lists.With}} {
		config.Logf("%d Nodes with %d layers each, in a kube-apiserver of their own", config.ListNodes, target.layers)
		list, err := measureList(ctx, config.ListNodes, target.layers)
		if err != nil {
			return nil, err
		}
		*target.list = *list
	}
	return lists, nil
}

func measureList(ctx context.Context, count, layers int) (_ *List, err error) {
	plane, err := controlplane.StartWith(".", controlplane.Settings{FeatureGates: "NodeStatusImageLayers=true", NoFsync: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	plane.Config.ContentType = runtime.ContentTypeProtobuf
	// The answers are measured as they are before compression, and take no time for it.
	plane.Config.DisableCompression = true
	client, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		return nil, err
	}
	if err := createNodes(ctx, client, count, layers); err != nil {
		return nil, err
	}
	list := &List{Layers: layers}
	if list.Memory, list.Heap, err = memory(ctx, client.RESTClient()); err != nil {
		return nil, err
	}
	const asJSON = "application/json"
	for range listRounds {
		for _, form := range []struct {
			accept, version string
			bytes           *int
			took            *[]time.Duration
		}{
			{runtime.ContentTypeProtobuf, "0", &list.Protobuf, &list.Cached},
			{runtime.ContentTypeProtobuf, "", &list.Protobuf, &list.Current},
			{asJSON, "0", &list.JSON, &list.JSONTook},
		} {
			begin := time.Now()
			answer, err := client.CoreV1().RESTClient().Get().Resource("nodes").
				Param("resourceVersion", form.version).SetHeader("Accept", form.accept).DoRaw(ctx)
			if err != nil {
				return nil, err
			}
			*form.took = append(*form.took, time.Since(begin))
			*form.bytes = len(answer)
			resident, _, err := memory(ctx, client.RESTClient())
			if err != nil {
				return nil, err
			}
			list.Peak = max(list.Peak, resident)
		}
	}
	// Fewer would be cheaper.
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	last, err := nodeimages.Get(ctx, client, nodeName(count-1))
	if err != nil {
		return nil, err
	}
	stored := 0
	for _, image := range last {
		stored += len(image.Layers)
	}
	if len(nodes.Items) != count || stored != layers {
		return nil, fmt.Errorf("%d Nodes were listed, and the last one has %d layers, instead of %d with %d", len(nodes.Items), stored, count, layers)
	}
	return list, nil
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// createNodes makes Nodes with the images of labelTarget, and so many layers.
func createNodes(ctx context.Context, client kubernetes.Interface, count, layers int) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"images": imagesWithLayers(layers)}})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range count {
		group.Go(func() error {
			nodes := client.CoreV1().Nodes()
			if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}, metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := nodes.Patch(ctx, nodeName(i), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		})
	}
	return group.Wait()
}

// memory returns kube-apiserver's metrics of its resident memory and of its heap, in bytes.
func memory(ctx context.Context, client rest.Interface) (resident, heap int64, err error) {
	text, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, metric := range []struct {
		name  string
		value *int64
	}{{"process_resident_memory_bytes", &resident}, {"go_memstats_heap_alloc_bytes", &heap}} {
		if *metric.value, err = value(text, metric.name); err != nil {
			return 0, 0, err
		}
	}
	return resident, heap, nil
}

// value returns that of a metric without labels.
func value(text []byte, name string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if number, found := strings.CutPrefix(lines.Text(), name+" "); found {
			parsed, err := strconv.ParseFloat(number, 64)
			return int64(parsed), err
		}
	}
	return 0, errors.Join(fmt.Errorf("kube-apiserver has no metric %s", name), lines.Err())
}

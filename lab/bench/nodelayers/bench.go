// Package nodelayers measures what the NodeLayers of a large cluster cost: a real apiserver and
// etcd that store them and take their renewals, and the scheduler's source that reads all of them
// into an index, beside the index of the same images as patched nodes state them in NodeStatus.
package nodelayers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/publish"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// Config defines what to measure.
type Config struct {
	bench.Progress `json:"-"`
	// Objects is the number of nodes, Images that of the images of each.
	Objects, Images int
	// Updates is how many renewals are measured.
	Updates int
	// Root is the folder of the repository, whose _build/bin has the programs.
	Root string
}

// Result is everything that was measured.
type Result struct {
	Config Config
	Data   string
	// JSONBytes is the mean size of an object as the apiserver answers with it.
	JSONBytes float64
	// HeapBytes is what an object adds to the live heap of the apiserver, which has a watch on
	// them.
	HeapBytes float64
	// UpdateCPU is the apiserver's processor time for an update, with one watcher, in seconds.
	UpdateCPU float64
	// EtcdBytes is the size of etcd's database with one version of each object.
	EtcdBytes float64
	// Start is the time from the start of the scheduler's source until all objects are in the
	// index.
	Start time.Duration
	// Layers and Status are the indexes from NodeLayers, and from the same as NodeStatus.
	Layers, Status Index
}

// Index is what an index of all nodes takes.
type Index struct {
	// Bytes of live heap, CPU to fill it.
	Bytes int64
	Fill  time.Duration
}

// layerMin is the size of layers from which on agents and kubelets state them.
const layerMin = 1 << 20

// Run measures.
func Run(ctx context.Context, config Config) (r *Result, err error) {
	if config.Objects < 1 || config.Images < 1 || config.Updates < 1 {
		return nil, errors.New("--objects, --images and --updates: want at least 1")
	}
	images, source, err := dataset.FromEnv()
	if err != nil {
		return nil, err
	}
	r = &Result{Config: config, Data: source}
	config.Logf("indexes of %d nodes with %d of %d images each (%s)", config.Objects, config.Images, len(images), source)
	fleet := newFleet(images, config)
	r.Status = fleet.measure(func(x *index.Index, node int) {
		x.SetImages("status", nodeName(node), fleet.held(node))
	})

	plane, err := controlplane.StartWith(config.Root, controlplane.Settings{NoFsync: true, Stock: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	server, err := connect(plane.Config)
	if err != nil {
		return nil, err
	}
	before, err := server.measure(ctx)
	if err != nil {
		return nil, err
	}
	config.Logf("creating objects")
	if r.JSONBytes, err = server.create(ctx, fleet); err != nil {
		return nil, err
	}
	after, err := server.measure(ctx)
	if err != nil {
		return nil, err
	}
	r.HeapBytes, r.EtcdBytes = (after.heap-before.heap)/float64(config.Objects), after.etcd

	config.Logf("the scheduler's source reads them")
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	r.Start, r.Layers, err = fleet.read(watch, plane.Config)
	if err != nil {
		return nil, err
	}
	config.Logf("%d updates", config.Updates)
	cpu, err := server.update(ctx, config.Updates)
	if err != nil {
		return nil, err
	}
	r.UpdateCPU = cpu / float64(config.Updates)
	return r, err
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d.example.com", i) }

// fleet is what nodes hold.
type fleet struct {
	images []dataset.Image
	// status are the images as a patched kubelet states them in NodeStatus; nodes share their
	// texts, as nodestatus.Transform has them do.
	status []index.Image
	nodes  [][]int // places in images
}

func newFleet(images []dataset.Image, config Config) *fleet {
	r := rand.New(rand.NewPCG(1, 24)) //nolint:gosec // a benchmark that can be repeated
	f := &fleet{images: images, status: make([]index.Image, len(images)), nodes: make([][]int, config.Objects)}
	for i := range images {
		f.status[i] = stated(&images[i])
	}
	for i := range f.nodes {
		f.nodes[i] = slices.Clone(r.Perm(len(images))[:min(config.Images, len(images))])
	}
	return f
}

// names returns the tag and the digest of an image.
func names(image *dataset.Image) []string {
	if image.Digest == "" {
		return []string{image.Image}
	}
	return []string{image.Image, image.Digest}
}

// object returns the NodeLayers of a node, as its agent writes it.
func (f *fleet) object(node int) *v1alpha1.NodeLayers {
	held := contents.Contents{Runtime: "containerd 2.3.7"}
	for _, i := range f.nodes[node] {
		image := contents.Image{Names: names(&f.images[i])}
		for _, l := range f.images[i].Layers {
			image.Layers = append(image.Layers, v1alpha1.ImageLayer{Digest: l.Digest, Size: l.Size})
		}
		held.Images = append(held.Images, image)
	}
	spec := held.Spec(layerMin, v1alpha1.MaxNodeListBytes)
	spec.RenewSeconds, spec.RenewTime = 600, metav1.Now()
	name := nodeName(node)
	return &v1alpha1.NodeLayers{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeLayers"},
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("uid-" + name)},
		}},
		Spec: *spec,
	}
}

// stated returns an image as a patched kubelet states it in NodeStatus.
func stated(of *dataset.Image) index.Image {
	image := index.Image{Names: []string{of.Image}, SizeBytes: 1}
	if of.Digest != "" {
		repository, _, _ := strings.Cut(of.Image, ":")
		image.Names = append(image.Names, repository+"@"+of.Digest)
	}
	for _, l := range of.Layers {
		if image.SizeBytes += 2 * l.Size; l.Size >= layerMin {
			image.Layers = append(image.Layers, index.Layer{Digest: l.Digest, Size: l.Size})
		}
	}
	return image
}

// held returns the images of a node as NodeStatus states them, all of them.
func (f *fleet) held(node int) []index.Image {
	images := make([]index.Image, len(f.nodes[node]))
	for i, place := range f.nodes[node] {
		images[i] = f.status[place]
	}
	return images
}

// newIndex returns an index that has the nodes.
func (f *fleet) newIndex() *index.Index {
	x := index.New()
	for i := range f.nodes {
		x.SetNode(nodeName(i), index.Platform{OS: "linux", Architecture: "amd64"})
	}
	return x
}

// measure fills an index, node by node, and returns what it takes.
func (f *fleet) measure(fill func(x *index.Index, node int)) Index {
	held := &sink{Index: f.newIndex()}
	began := time.Now()
	for node := range f.nodes {
		fill(held.Index, node)
	}
	took := time.Since(began)
	with := liveHeap()
	runtime.KeepAlive(held.Index)
	held.Index = nil
	return Index{Bytes: with - liveHeap(), Fill: took}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // of a process
}

// sink writes reports into an index.
type sink struct {
	*index.Index
	mu    sync.Mutex
	fill  time.Duration
	nodes map[string]bool
}

var _ locality.NodeSink = &sink{}

// SetReport implements locality.NodeSink.
func (s *sink) SetReport(source, node string, report *locality.NodeReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if report != nil && s.Index != nil {
		s.SetChains(node, report.InChains)
		s.nodes[node] = s.SetImages(source, node, report.Images)
	}
	s.fill += time.Since(began)
}

// read has the scheduler's source read all objects, and goes on watching them.
func (f *fleet) read(ctx context.Context, config *rest.Config) (start time.Duration, of Index, err error) {
	s := &sink{Index: f.newIndex(), nodes: map[string]bool{}}
	source, err := nodelayers.NewSource(config)
	if err != nil {
		return 0, of, err
	}
	began := time.Now()
	synced, err := source.RequireSync().Start(ctx, s)
	if err != nil {
		return 0, of, err
	}
	err = poll.Until(ctx, 10*time.Millisecond, 5*time.Minute, func(context.Context) error {
		if !synced.HasSynced() {
			return errors.New("the objects are not read yet")
		}
		return nil
	})
	start = time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && (len(s.nodes) != len(f.nodes) || slices.Contains(slices.Collect(maps.Values(s.nodes)), false)) {
		err = fmt.Errorf("%d of %d nodes are in the index", len(s.nodes), len(f.nodes))
	}
	with := liveHeap()
	s.Index = nil // only the source goes on
	return start, Index{Bytes: with - liveHeap(), Fill: s.fill}, err
}

// server is the apiserver.
type server struct {
	objects client.Client
	agent   *publish.Client // as each agent has it
	metrics kubernetes.Interface
	kept    []*v1alpha1.NodeLayers
}

func connect(config *rest.Config) (*server, error) {
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	objects, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	agent, err := publish.NewClient(config)
	if err != nil {
		return nil, err
	}
	metrics, err := kubernetes.NewForConfig(config)
	return &server{objects: objects, agent: agent, metrics: metrics}, err
}

// usage has the apiserver's metrics of itself and of etcd.
type usage struct{ heap, cpu, etcd float64 }

// measure asks for it, after a garbage collection.
func (s *server) measure(ctx context.Context) (usage, error) {
	get := s.metrics.CoreV1().RESTClient().Get
	for range 2 {
		if _, err := get().AbsPath("/debug/pprof/heap").Param("gc", "1").DoRaw(ctx); err != nil {
			return usage{}, fmt.Errorf("profile of the apiserver: %w", err)
		}
	}
	text, err := get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return usage{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return usage{}, fmt.Errorf("metrics of the apiserver: %w", err)
	}
	value := func(name string) (sum float64) {
		if families[name] == nil {
			err = errors.Join(err, fmt.Errorf("the apiserver has no metric %s", name))
			return 0
		}
		for _, m := range families[name].GetMetric() {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		return sum
	}
	u := usage{heap: value("go_memstats_heap_alloc_bytes"), cpu: value("process_cpu_seconds_total"), etcd: value("apiserver_storage_size_bytes")}
	return u, err
}

// create creates all objects and returns their mean size.
func (s *server) create(ctx context.Context, f *fleet) (float64, error) {
	s.kept = make([]*v1alpha1.NodeLayers, len(f.nodes))
	sizes := make([]int, len(f.nodes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range f.nodes {
		group.Go(func() error {
			object := f.object(i)
			if err := s.objects.Create(ctx, object); err != nil {
				return err
			}
			text, err := json.Marshal(object)
			sizes[i], s.kept[i] = len(text), object
			return err
		})
	}
	err := group.Wait()
	sum := 0
	for _, size := range sizes {
		sum += size
	}
	return float64(sum) / float64(len(sizes)), err
}

// update renews n objects and returns the processor time that this takes the apiserver, in
// seconds.
func (s *server) update(ctx context.Context, n int) (float64, error) {
	before, err := s.measure(ctx)
	if err != nil {
		return 0, err
	}
	for i := range n {
		object := s.kept[i%len(s.kept)]
		object.Spec.RenewTime = metav1.NewTime(object.Spec.RenewTime.Add(time.Minute))
		version, err := s.agent.Update(ctx, object, "")
		if err != nil {
			return 0, err
		}
		object.ResourceVersion = version
	}
	between, err := s.measure(ctx)
	if err != nil {
		return 0, err
	}
	// The measurement itself takes time, most of it for the profile.
	after, err := s.measure(ctx)
	return (between.cpu - before.cpu) - (after.cpu - between.cpu), err
}

// Goals.
const (
	goalJSON, goalHeap = 33.0, 80.0 // kB an object
	goalUpdate         = 6.0        // ms of processor time
	goalStart          = 5 * time.Second
	goalIndex          = 1.2
)

// Write implements bench.Result.
func (r *Result) Write(w io.Writer) error {
	ratio := float64(r.Layers.Bytes) / float64(max(1, r.Status.Bytes))
	json, heap, update := r.JSONBytes/1e3, r.HeapBytes/1e3, r.UpdateCPU*1e3
	met := func(ok bool) string {
		if ok {
			return "met"
		}
		return "missed"
	}
	_, err := fmt.Fprintf(w, `NodeLayers of %d nodes with %d images each (%s)

  JSON of an object                    %8.1f kB   goal %.0f: %s
  live heap of the apiserver, each     %8.1f kB   goal %.0f: %s
  processor time of an update there    %8.2f ms   goal %.0f: %s
  etcd's database                      %8.1f MB
  until the scheduler has read all     %8.2f s    goal %.0f: %s
  index from NodeLayers                %8.1f MB in %.2f s
  index from NodeStatus, same images   %8.1f MB in %.2f s
  their sizes' ratio                   %8.2f      goal %.1f: %s

nodelayers objects=%d json_kb=%.1f heap_kb=%.1f update_ms=%.2f etcd_mb=%.1f start_s=%.2f index_ratio=%.2f
`,
		r.Config.Objects, r.Config.Images, r.Data,
		json, goalJSON, met(json <= goalJSON), heap, goalHeap, met(heap <= goalHeap), update, goalUpdate, met(update <= goalUpdate),
		r.EtcdBytes/1e6, r.Start.Seconds(), goalStart.Seconds(), met(r.Start <= goalStart),
		float64(r.Layers.Bytes)/1e6, r.Layers.Fill.Seconds(), float64(r.Status.Bytes)/1e6, r.Status.Fill.Seconds(), ratio, goalIndex, met(ratio <= goalIndex),
		r.Config.Objects, json, heap, update, r.EtcdBytes/1e6, r.Start.Seconds(), ratio)
	return err
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/bench/timing"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// joined compares the index of nodes that state layers with that of stock nodes, which name
// images by digest, and of their ImageManifests. Both are filled by the handler of Nodes.
type joined struct {
	Layers built `json:"layers"`
	Names  built `json:"names"`
}

// built is what it costs to fill an index: the median of several rounds.
type built struct {
	Milliseconds float64 `json:"ms"`
	Heap         heap    `json:"heap"`
}

func (j joined) String() string {
	return fmt.Sprintf("build layers_ms=%.0f names_ms=%.0f time_ratio=%.2f layers_mib=%.1f names_mib=%.1f memory_ratio=%.2f",
		j.Layers.Milliseconds, j.Names.Milliseconds, j.Names.Milliseconds/j.Layers.Milliseconds,
		j.Layers.Heap.mib(), j.Names.Heap.mib(), float64(j.Names.Heap.InUse)/float64(j.Layers.Heap.InUse))
}

func measureJoined(ctx context.Context, wire [][]byte, images []dataset.Image, rounds int) (joined, error) {
	var j joined
	manifests, err := manifestsOf(wire, images)
	if err != nil {
		return j, err
	}
	var layers, names []float64
	for range min(rounds, 5) {
		took, err := j.Layers.fill(ctx, wire, nil)
		if err != nil {
			return j, err
		}
		layers = append(layers, took.Seconds()*1000)
		if took, err = j.Names.fill(ctx, wire, manifests); err != nil {
			return j, err
		}
		names = append(names, took.Seconds()*1000)
	}
	slices.Sort(layers)
	slices.Sort(names)
	j.Layers.Milliseconds, j.Names.Milliseconds = layers[len(layers)/2], names[len(names)/2]
	return j, nil
}

// fill fills the index of a new Tracker. With manifests, the nodes state names only. It
// returns the processor time of the handler of Nodes.
func (b *built) fill(ctx context.Context, wire [][]byte, manifests []byte) (took time.Duration, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	stored, err := keep(wire, true)
	if err != nil {
		return 0, err
	}
	nodes := stored.List()
	source, err := imagemanifests.NewSource(&rest.Config{Host: "https://apiserver.example", Transport: answers(manifests)})
	if err != nil {
		return 0, err
	}
	var sources []locality.ManifestSource
	if manifests != nil {
		sources = append(sources, source)
		for _, object := range nodes {
			node := object.(*v1.Node)
			for i := range node.Status.Images {
				nodestatus.SetLayers(&node.Status.Images[i], nil)
			}
		}
	}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	var followed *informer
	factory.InformerFor(&v1.Node{}, func(client clientset.Interface, resync time.Duration) cache.SharedIndexInformer {
		followed = &informer{SharedIndexInformer: coreinformers.NewNodeInformer(client, resync, cache.Indexers{})}
		return followed
	})
	core := factory.Core().V1()
	tracker := locality.NewTracker(locality.Config{Nodes: core.Nodes(), Pods: core.Pods(), Images: sources})
	tracker.NewProfile("p", &config.LayerLocalityArgs{LayerReuse: config.ReuseByDigest})
	if err := tracker.Start(ctx); err != nil {
		return 0, err
	}
	if manifests != nil && !cache.WaitForCacheSync(ctx.Done(), source.HasSynced) {
		return 0, ctx.Err()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.Heap, _, err = grown(func() (any, error) {
		begin := timing.Thread()
		for _, node := range nodes {
			followed.handlers[0].OnAdd(node, true)
		}
		took = timing.Thread() - begin
		return nil, nil
	})
	known, want := tracker.ImagesOfAll(), len(nodes)*len(nodes[0].(*v1.Node).Status.Images)
	if manifests != nil && known[locality.FromManifest] != want || manifests == nil && known[locality.FromLayers] != want {
		return 0, fmt.Errorf("of %d images on nodes, layers are known of %v", want, known)
	}
	runtime.KeepAlive(stored)
	return took, err
}

// manifestsOf returns the list of an ImageManifest for each image on the nodes, as an
// apiserver sends it.
func manifestsOf(wire [][]byte, images []dataset.Image) ([]byte, error) {
	layers := map[string][]dataset.Layer{}
	for _, image := range images {
		layers[image.Image] = image.Layers
	}
	list := &v1alpha1.ImageManifestList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifestList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"},
	}
	seen := map[string]bool{}
	for i := range wire {
		node, err := decode(wire[i])
		if err != nil {
			return nil, err
		}
		for _, image := range node.Status.Images {
			_, digest, _ := strings.Cut(image.Names[0], "@") // fleet names images so
			if seen[digest] {
				continue
			}
			seen[digest] = true
			m := v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(digest)}}
			m.Spec.Digest = digest
			for _, l := range layers[image.Names[1]] {
				m.Spec.Layers = append(m.Spec.Layers, v1alpha1.ImageLayer{Digest: l.Digest, Size: l.Size})
			}
			m.Status.References = []v1alpha1.ImageReference{{Name: image.Names[1], Digest: digest}}
			list.Items = append(list.Items, m)
		}
	}
	return json.Marshal(list)
}

// answers is an apiserver with a list of ImageManifests that never changes.
type answers []byte

// RoundTrip answers every request for a list with it, and watches with nothing.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") != "": // as an apiserver without it
		response.StatusCode = http.StatusUnprocessableEntity
		response.Body = io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid"}`))
	case query.Get("watch") != "":
		reader, writer := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = writer.Close() })
		response.Body = reader
	default:
		response.Body = io.NopCloser(bytes.NewReader(a))
	}
	return response, nil
}

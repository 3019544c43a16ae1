// Command measure compares LayerLocality with other plugins in one process: the
// cost of scoring a pod, the size of the index, and the cost of an update of a
// Node. As in kube-scheduler, the Nodes are decoded, pass the transform of the
// informer, and reach the index through the handler.
//
// It is built against the patched Kubernetes: `lab/run bench scheduler`.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/layer-locality/layer-locality/lab/bench/fleet"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

type options struct {
	nodes, images, layers, rounds int
	kinds, out, profiles          string
	nodeLayers                    bool
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 5000, "nodes of the cluster")
	flag.IntVar(&o.images, "images", 50, "images of a node (the kubelet states the 50 largest)")
	flag.IntVar(&o.layers, "layers", 12, "layers of a generated image; images of a file keep theirs")
	flag.IntVar(&o.rounds, "rounds", 11, "rounds of the scores; in one, each plugin is measured once")
	flag.StringVar(&o.kinds, "kinds", "popular,usual,rare,unknown", "kinds of images that pods ask for; the first makes the last line")
	flag.StringVar(&o.out, "out", "", "file for all that was measured (JSON)")
	flag.StringVar(&o.profiles, "profile-dir", "", "folder for CPU profiles (pprof), made after the measurement")
	flag.BoolVar(&o.nodeLayers, "node-layers", false, "NodeLayers state what nodes hold, and NodeStatus no layers; only scores are measured")
	flag.Parse()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// report is what was measured.
type report struct {
	// Source of the images: a file, or "generated".
	Source        string  `json:"source"`
	Nodes         int     `json:"nodes"`
	ImagesPerNode int     `json:"imagesPerNode"`
	LayersPerNode float64 `json:"layersPerNode"`
	// NodeBytes is the mean size of an encoded Node (protobuf).
	NodeBytes int     `json:"nodeBytes"`
	Memory    memory  `json:"memory"`
	Joined    joined  `json:"joined"`
	Updates   updates `json:"updates"`
	Scores    []score `json:"scores"`
}

func (o *options) run(ctx context.Context) error {
	if err := nodestatus.NeedLayers(); err != nil {
		return err
	}
	if o.nodes < 10 || o.images < 1 || o.layers < 1 || o.rounds < 1 {
		return fmt.Errorf("-nodes=%d -images=%d -layers=%d -rounds=%d: want at least 10 nodes, and 1 of the others", o.nodes, o.images, o.layers, o.rounds)
	}
	metrics.Register()
	images, source, err := dataset.FromEnv()
	if err != nil {
		return err
	}
	if source == "generated" {
		images = withLayers(images, o.layers)
	}
	r := &report{Source: source, Nodes: o.nodes}
	wire, err := r.encode(fleet.Nodes(fleet.Images(images), o.nodes, o.images))
	if err != nil {
		return err
	}
	fmt.Printf("fleet source=%s nodes=%d images_per_node=%d layers_per_image=%.1f node_pb_bytes=%d\n",
		r.Source, r.Nodes, r.ImagesPerNode, r.LayersPerNode/float64(r.ImagesPerNode), r.NodeBytes)

	var reports *nodeReports
	if o.nodeLayers {
		if wire, reports, err = reportByAgents(wire); err != nil {
			return err
		}
	} else if err := r.measureStates(ctx, wire, images, o.rounds); err != nil {
		return err
	}
	c, err := startCluster(ctx, wire, reports)
	if err != nil {
		return err
	}
	defer c.stop()
	if !o.nodeLayers {
		if r.Updates, err = measureUpdates(c, wire, o.rounds); err != nil {
			return err
		}
		fmt.Println(r.Updates)
	}
	if r.Scores, err = c.measureScores(ctx, strings.Split(o.kinds, ","), o.rounds); err != nil {
		return err
	}
	if o.profiles != "" {
		if err := c.profile(ctx, o.profiles); err != nil {
			return err
		}
	}
	if o.out != "" {
		if err := write(o.out, r); err != nil {
			return err
		}
	}
	headline, worst := r.Scores[0], 0.0
	for i := range r.Scores {
		worst = max(worst, r.Scores[i].ratio())
	}
	fmt.Printf("score_%dn layerlocality_us=%.1f imagelocality_us=%.1f prototype_us=%.1f ratio=%.2f worst_ratio=%.2f\n", o.nodes,
		headline.LayerLocality.Micros, headline.ImageLocality.Micros, headline.Prototype.Micros, headline.ratio(), worst)
	return nil
}

// measureStates measures what it takes to index what nodes state.
func (r *report) measureStates(ctx context.Context, wire [][]byte, images []dataset.Image, rounds int) (err error) {
	if r.Memory, err = measureMemory(wire); err != nil {
		return err
	}
	fmt.Println(r.Memory)
	if r.Joined, err = measureJoined(ctx, wire, images, rounds); err != nil {
		return err
	}
	fmt.Println(r.Joined)
	return nil
}

// encode returns the Nodes as an apiserver sends them, so that each decoded
// copy has its own strings. It records their size in the report.
func (r *report) encode(nodes []*v1.Node) ([][]byte, error) {
	wire := make([][]byte, len(nodes))
	for i, node := range nodes {
		var err error
		if wire[i], err = node.Marshal(); err != nil {
			return nil, fmt.Errorf("encoding %s: %w", node.Name, err)
		}
		r.NodeBytes += len(wire[i])
		for _, image := range nodestatus.Images(node) {
			r.LayersPerNode += float64(len(image.Layers))
		}
	}
	r.ImagesPerNode = len(nodes[0].Status.Images)
	r.NodeBytes /= len(nodes)
	r.LayersPerNode /= float64(len(nodes))
	return wire, nil
}

func write(name string, r *report) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}

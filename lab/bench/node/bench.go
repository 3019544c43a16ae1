// Package node measures how many bytes the layers of images add to a Node, how
// many writes to its status, how much time to a write of a label, and what they cost in
// lists of all Nodes.
package node

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Seeds is the number of nodes to draw images for.
	Seeds int
	// Images of a node. A kubelet reports the 50 largest.
	Images int
	// Window in which status writes are counted; 0 means they are not counted.
	Window time.Duration
	// Labels is how often a label is written; 0 means that this is not measured.
	Labels int
	// ListNodes is how many Nodes are listed with layers and without; 0 means that this
	// is not measured.
	ListNodes int
	// LogDir gets the logs of the cluster in which status writes are counted. They
	// replace those of an earlier run.
	LogDir string
}

func (c *Config) check() error {
	if c.Seeds < 1 || c.Images < 1 {
		return fmt.Errorf("--seeds=%d --images=%d: want at least 1 of each", c.Seeds, c.Images)
	}
	if c.Labels < 0 {
		return fmt.Errorf("--labels=%d: want a number of writes, or 0 not to measure them", c.Labels)
	}
	if c.ListNodes < 0 {
		return fmt.Errorf("--list-nodes=%d: want a number of Nodes, or 0 not to list them", c.ListNodes)
	}
	if c.Window != 0 && c.Window < idleInterval {
		return fmt.Errorf("--window=%s: idle kubelets write their status every %s; want more, or 0 not to count", c.Window, idleInterval)
	}
	return nil
}

// Result is everything that was measured.
type Result struct {
	Seeds  int `json:"nodes"`
	Images int `json:"imagesPerNode"`
	// Source of the images: a file, or "generated".
	Source string `json:"source"`
	// Nodes are the measurements, one per node.
	Nodes []Measurement `json:"measurements"`
	// Writes is nil if they were not counted.
	Writes *StatusWrites `json:"statusWrites,omitempty"`
	// Labels is nil if it was not measured.
	Labels *LabelWrites `json:"labelWrites,omitempty"`
	// Lists is nil if it was not measured.
	Lists *Lists `json:"lists,omitempty"`

	// all is how many images the source has.
	all int
}

// Run measures Nodes in the patched Kubernetes tree, then writes of a label to a
// stock and a patched API server and lists of many Nodes, and then counts the status writes of a stock
// and a patched kubelet on a cluster that it starts and removes. If one of them
// fails, the Result still has what was measured before.
func Run(ctx context.Context, config Config) (*Result, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	all, source, err := dataset.FromEnv()
	if err != nil {
		return nil, err
	}
	tree, err := bench.PatchedKubernetes(ctx)
	if err != nil {
		return nil, err
	}
	result := &Result{Seeds: config.Seeds, Images: config.Images, Source: source, all: len(all)}
	config.Logf("%d images (%s); %d nodes with %d of them each", len(all), source, config.Seeds, config.Images)
	if result.Nodes, err = Measure(ctx, tree, Nodes(all, config.Seeds, config.Images)); err != nil {
		return nil, err
	}
	if config.Labels > 0 {
		if result.Labels, err = measureLabelWrites(ctx, config); err != nil {
			return result, err
		}
	}
	if config.ListNodes > 0 {
		if result.Lists, err = measureLists(ctx, config); err != nil {
			return result, err
		}
	}
	if config.Window > 0 {
		result.Writes, err = countStatusWrites(ctx, config)
	}
	return result, err
}

// Write writes tables of sizes and of writes, and a line of key=value pairs.
func (r *Result) Write(w io.Writer) error {
	s := Summarize(r.Nodes)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d images (%s); %d nodes with %d of them each\n", r.all, r.Source, r.Seeds, r.Images)
	fmt.Fprintf(table, "\tmean\tworst\n")
	fmt.Fprintf(table, "bytes added to a Node, protobuf\t%d\t%d\n", s.MeanAddedProtobuf, s.MaxAddedProtobuf)
	fmt.Fprintf(table, "bytes added to a Node, JSON\t%d\t%d\n", s.MeanAddedJSON, s.MaxAddedJSON)
	fmt.Fprintf(table, "share of layer bytes reported\t%.4f\t%.4f\n", s.MeanKept, s.MinKept)
	if err := table.Flush(); err != nil {
		return err
	}
	ratio, labelRatio := "not-counted", "not-measured"
	if r.Labels != nil {
		if err := r.Labels.write(w); err != nil {
			return err
		}
		labelRatio = fmt.Sprintf("%.2f", r.Labels.ratio())
	}
	if r.Lists != nil {
		if err := r.Lists.write(w); err != nil {
			return err
		}
	}
	if r.Writes != nil {
		if err := r.Writes.write(w); err != nil {
			return err
		}
		ratio = fmt.Sprintf("%.2f", r.Writes.ratio())
	}
	_, err := fmt.Fprintf(w, "node_status images=%d added_pb_bytes=%d kept=%.4f writes_ratio=%s label_ratio=%s\n",
		s.Images, s.MeanAddedProtobuf, s.MeanKept, ratio, labelRatio)
	return err
}

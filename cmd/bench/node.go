package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/cluster"
	"github.com/layer-locality/layer-locality/cluster/images"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/dataset"
	"github.com/layer-locality/layer-locality/internal/nodelayers"
	"github.com/layer-locality/layer-locality/internal/nodesize"
)

// nodeCommand measures what layers add to a Node, and to the writes of its
// status.
func nodeCommand() *cobra.Command {
	var b nodeBench
	command := &cobra.Command{
		Use:   "node",
		Short: "Bytes that layers add to a Node, and writes of its status, stock and patched",
		Long: `Draws the images of many nodes from the file of real manifests that ` + dataset.Env + ` names,
or from generated ones, and lets the kubelet's code make their Nodes: how many bytes do
layers add, and which share of all layer bytes do they tell of?

Then runs a stock and a patched kubelet side by side, with the same images and nothing
to do, and counts in the apiserver's audit log how often each writes its Node's status.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := command.Flags()
	flags.IntVar(&b.Seeds, "seeds", 100, "how many nodes to draw images for")
	flags.IntVar(&b.Images, "images", 50, "images of a node (the kubelet reports the 50 largest)")
	flags.DurationVar(&b.window, "window", 16*time.Minute,
		"how long to count status writes; idle kubelets write every 306 s on average, so a window should not be near a multiple of that; 0: do not count")
	flags.StringVar(&b.out, "out", "_out/bench/node.json", "file for all that was measured")
	return command
}

// nodeBench is a run of the benchmark, and what it writes as JSON.
type nodeBench struct {
	Seeds  int `json:"nodes"`
	Images int `json:"imagesPerNode"`
	// Source of the images: a file, or "generated".
	Source string `json:"source"`
	// Nodes are the measurements, one a node.
	Nodes []nodesize.Measurement `json:"measurements"`
	// Writes is nil if they were not counted.
	Writes *statusWrites `json:"statusWrites,omitempty"`

	window time.Duration
	out    string
}

func (b *nodeBench) run(ctx context.Context) error {
	if b.Seeds < 1 || b.Images < 1 {
		return fmt.Errorf("--seeds=%d --images=%d: want at least 1 of each", b.Seeds, b.Images)
	}
	if b.window != 0 && b.window < idleInterval {
		return fmt.Errorf("--window=%s: idle kubelets write their status every %s; want more, or 0 not to count", b.window, idleInterval)
	}
	if err := b.measureSize(ctx); err != nil {
		return err
	}
	ratio := "not-counted"
	if b.window > 0 {
		writes, err := countStatusWrites(ctx, b.window)
		if err != nil {
			return err
		}
		b.Writes = writes
		ratio = fmt.Sprintf("%.2f", writes.ratio())
	}
	if err := writeJSON(b.out, b); err != nil {
		return err
	}
	s := nodesize.Summarize(b.Nodes)
	fmt.Printf("node_status images=%d added_pb_bytes=%d kept=%.4f writes_ratio=%s\n", s.Images, s.MeanAddedProtobuf, s.MeanKept, ratio)
	return nil
}

func (b *nodeBench) measureSize(ctx context.Context) error {
	all, source, err := dataset.FromEnv()
	if err != nil {
		return err
	}
	b.Source = source
	tree, err := patchedKubernetes(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%d images (%s); %d nodes with %d of them each\n", len(all), source, b.Seeds, b.Images)
	if b.Nodes, err = nodesize.Measure(ctx, tree, nodesize.Nodes(all, b.Seeds, b.Images)); err != nil {
		return err
	}
	s := nodesize.Summarize(b.Nodes)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\tmean\tworst\n")
	fmt.Fprintf(table, "bytes added to a Node, protobuf\t%d\t%d\n", s.MeanAddedProtobuf, s.MaxAddedProtobuf)
	fmt.Fprintf(table, "bytes added to a Node, JSON\t%d\t%d\n", s.MeanAddedJSON, s.MaxAddedJSON)
	fmt.Fprintf(table, "share of layer bytes told\t%.4f\t%.4f\n", s.MeanKept, s.MinKept)
	return table.Flush()
}

// patchedKubernetes is the path of the patched tree, assembled if need be.
func patchedKubernetes(ctx context.Context) (string, error) {
	script := exec.CommandContext(ctx, "scripts/tree.sh", "patched", "kubernetes")
	script.Stderr = os.Stderr
	out, err := script.Output()
	if err != nil {
		return "", fmt.Errorf("assemble the patched Kubernetes tree (is this the root of the repository?): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// idleInterval is between the status writes of a kubelet whose Node does not
// change, with the defaults of nodeStatusReportFrequency and
// nodeStatusUpdateFrequency: at the first of its updates, every 10 to 10.4 s,
// that comes 5 minutes or more after the last write. After a change, the first
// interval is random: half to one and a half as long.
const idleInterval = 306 * time.Second

// The two nodes.
const (
	stockNode   = "n1"
	patchedNode = "n2"
)

// statusWrites is what the audit log says of two kubelets.
type statusWrites struct {
	WindowSeconds float64  `json:"windowSeconds"`
	Stock         nodeLoad `json:"stock"`
	Patched       nodeLoad `json:"patched"`
}

func (w *statusWrites) ratio() float64 {
	return float64(w.Patched.Writes) / float64(w.Stock.Writes)
}

// nodeLoad is how often a kubelet wrote its status. The window begins with a
// write of the same kubelet, which does not count: so the number does not depend
// on where in its interval a kubelet happens to be.
type nodeLoad struct {
	Begin time.Time `json:"begin"`
	// Writes in the window, and when.
	Writes int         `json:"writes"`
	Times  []time.Time `json:"times"`
}

// perHour is the rate at the mean interval of the writes seen.
func (l nodeLoad) perHour() float64 {
	if l.Writes == 0 {
		return 0
	}
	return float64(l.Writes) / l.Times[l.Writes-1].Sub(l.Begin).Hours()
}

func countStatusWrites(ctx context.Context, window time.Duration) (_ *statusWrites, err error) {
	fmt.Println("starting a cluster: two nodes, one with a stock and one with a patched kubelet")
	logs, err := filepath.Abs("_out/bench/log-node")
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(logs); err != nil { // with the audit log of the last run
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Config{
		Name:    "bench-node",
		LogDir:  logs,
		Nodes:   2,
		Flavour: cluster.Patched,
		PerNode: func(node string, _, kubelet *cluster.Component) {
			if node == stockNode {
				kubelet.Flavour = cluster.Stock
			}
		},
		AuditPolicy: auditlog.NodeWrites,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		if err = errors.Join(err, c.Stop(cleanup)); err != nil {
			err = fmt.Errorf("%w; the logs are in %s", err, logs)
		}
	}()
	pulled, err := pullImages(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := waitFor(ctx, 2*time.Minute, func() error { return nodesState(ctx, c, pulled) }); err != nil {
		return nil, err
	}
	settled := time.Now()
	fmt.Printf("both nodes hold %d images, the patched one tells their layers; waiting for a regular status write of each, up to 8 minutes\n", len(pulled))

	begin := map[string]time.Time{}
	err = waitFor(ctx, 10*time.Minute, func() error {
		log, err := auditlog.Read(c.AuditLog())
		if err != nil {
			return err
		}
		for _, node := range c.Nodes() {
			writes := log.StatusWrites(node.Name).Between(settled, time.Now()).Times()
			if len(writes) == 0 {
				return fmt.Errorf("%s has not written its status since the start", node.Name)
			}
			begin[node.Name] = writes[0]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	last := slices.MaxFunc([]time.Time{begin[stockNode], begin[patchedNode]}, time.Time.Compare)
	fmt.Printf("counting for %s, until %s\n", window, last.Add(window).Local().Format(time.TimeOnly))
	select {
	case <-time.After(time.Until(last.Add(window))):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := nodesState(ctx, c, pulled); err != nil {
		return nil, fmt.Errorf("after the window: %w", err)
	}
	log, err := auditlog.Read(c.AuditLog())
	if err != nil {
		return nil, err
	}
	load := func(name string) nodeLoad {
		from := begin[name]
		// The first write is at from itself.
		times := log.StatusWrites(name).Between(from.Add(time.Microsecond), from.Add(window)).Times()
		return nodeLoad{Begin: from, Writes: len(times), Times: times}
	}
	w := &statusWrites{WindowSeconds: window.Seconds(), Stock: load(stockNode), Patched: load(patchedNode)}
	if w.Stock.Writes == 0 {
		return nil, fmt.Errorf("the stock kubelet has not written its status within %s; see %s", window, c.Node(stockNode).Kubelet().Log())
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "status writes\tin %s\tan hour, at their mean interval\n", window)
	fmt.Fprintf(table, "stock kubelet\t%d\t%.2f\n", w.Stock.Writes, w.Stock.perHour())
	fmt.Fprintf(table, "patched kubelet\t%d\t%.2f\n", w.Patched.Writes, w.Patched.perHour())
	return w, table.Flush()
}

// pullImages lets both nodes pull the same images of shared layers and returns
// their names.
func pullImages(ctx context.Context, c *cluster.Cluster) ([]string, error) {
	const count = 10
	var names []string
	for i := range count {
		image, err := images.Build(images.Image{
			Entrypoint: []string{"/none"}, // it is not meant to run
			Layers:     []images.Layer{{Name: "base", Size: 4 << 20}, {Name: fmt.Sprint("own-", i), Size: 2 << 20}},
		})
		if err != nil {
			return nil, err
		}
		pushed, err := images.Push(ctx, fmt.Sprintf("%s/image-%d:v1", c.Registry().Address, i), image)
		if err != nil {
			return nil, err
		}
		names = append(names, pushed.Reference)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range c.Nodes() {
		group.Go(func() error {
			for _, name := range names {
				if _, err := node.Exec(ctx, "crictl", "pull", name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return names, group.Wait()
}

// nodesState checks that both Nodes state the images, and the patched one the
// two layers of each: else there is nothing to compare.
func nodesState(ctx context.Context, c *cluster.Cluster, names []string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for node, layers := range map[string]int{stockNode: 0, patchedNode: 2} {
		list, err := nodelayers.Get(ctx, client, node)
		if err != nil {
			return err
		}
		for _, name := range names {
			i := slices.IndexFunc(list, func(image nodelayers.Image) bool { return slices.Contains(image.Names, name) })
			if i < 0 {
				return fmt.Errorf("node %s does not state image %s", node, name)
			}
			if got := len(list[i].Layers); got != layers {
				return fmt.Errorf("node %s states %d layers of %s instead of %d", node, got, name, layers)
			}
		}
	}
	return nil
}

// waitFor tries check every second until it gives no error.
func waitFor(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w for %s", err, limit)
		case <-time.After(time.Second):
		}
	}
}

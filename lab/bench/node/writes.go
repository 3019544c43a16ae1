package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
)

// idleInterval is the time between the status writes of a kubelet whose Node
// does not change, with the defaults of nodeStatusReportFrequency and
// nodeStatusUpdateFrequency. The kubelet updates every 10 to 10.4 s, and writes
// at the first update that comes 5 minutes or more after the last write. After
// a change, the first interval is random: half to one and a half as long.
const idleInterval = 306 * time.Second

// The two nodes.
const (
	stockNode   = "n1"
	patchedNode = "n2"
)

// StatusWrites holds the status writes of two kubelets, from the audit log.
type StatusWrites struct {
	WindowSeconds float64 `json:"windowSeconds"`
	Stock         Load    `json:"stock"`
	Patched       Load    `json:"patched"`
}

func (w *StatusWrites) ratio() float64 {
	return float64(w.Patched.Writes) / float64(w.Stock.Writes)
}

// write writes a table.
func (w *StatusWrites) write(out io.Writer) error {
	window := time.Duration(w.WindowSeconds * float64(time.Second))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "status writes\tin %s\tan hour, at their mean interval\n", window)
	fmt.Fprintf(table, "stock kubelet\t%d\t%.2f\n", w.Stock.Writes, w.Stock.perHour())
	fmt.Fprintf(table, "patched kubelet\t%d\t%.2f\n", w.Patched.Writes, w.Patched.perHour())
	return table.Flush()
}

// Load is how often a kubelet wrote its status. The window begins with a write
// of the same kubelet, which does not count. So the number does not depend on
// where in its interval a kubelet happens to be.
type Load struct {
	Begin time.Time `json:"begin"`
	// Writes in the window, and their times.
	Writes int         `json:"writes"`
	Times  []time.Time `json:"times"`
}

// perHour returns the number of writes an hour, at the mean interval of the
// observed writes.
func (l Load) perHour() float64 {
	if l.Writes == 0 {
		return 0
	}
	return float64(l.Writes) / l.Times[l.Writes-1].Sub(l.Begin).Hours()
}

func countStatusWrites(ctx context.Context, config Config) (_ *StatusWrites, err error) {
	config.Logf("starting a cluster: two nodes, one with a stock and one with a patched kubelet")
	logs, err := filepath.Abs(config.LogDir)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(logs); err != nil { // including the audit log of the last run
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
	if err := poll.Until(ctx, time.Second, 2*time.Minute, func(ctx context.Context) error { return nodesState(ctx, c, pulled) }); err != nil {
		return nil, err
	}
	settled := time.Now()
	config.Logf("both nodes hold %d images, the patched one states their layers; waiting for a regular status write of each, up to 8 minutes", len(pulled))

	begin := map[string]time.Time{}
	err = poll.Until(ctx, time.Second, 10*time.Minute, func(context.Context) error {
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
	config.Logf("counting for %s, until %s", config.Window, last.Add(config.Window).Local().Format(time.TimeOnly))
	select {
	case <-time.After(time.Until(last.Add(config.Window))):
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
	load := func(name string) Load {
		from := begin[name]
		// The first write is at from itself, and does not count.
		times := log.StatusWrites(name).Between(from.Add(time.Microsecond), from.Add(config.Window)).Times()
		return Load{Begin: from, Writes: len(times), Times: times}
	}
	w := &StatusWrites{WindowSeconds: config.Window.Seconds(), Stock: load(stockNode), Patched: load(patchedNode)}
	if w.Stock.Writes == 0 {
		return nil, fmt.Errorf("the stock kubelet has not written its status within %s; see %s", config.Window, c.Node(stockNode).Kubelet().Log())
	}
	return w, nil
}

// pullImages lets both nodes pull the same images, which share layers, and
// returns their names.
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

// nodesState checks that both Nodes report the images, and that the patched one
// reports the two layers of each. Otherwise there is nothing to compare.
func nodesState(ctx context.Context, c *cluster.Cluster, names []string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for node, layers := range map[string]int{stockNode: 0, patchedNode: 2} {
		list, err := nodeimages.Get(ctx, client, node)
		if err != nil {
			return err
		}
		for _, name := range names {
			i := slices.IndexFunc(list, func(image nodeimages.Image) bool { return slices.Contains(image.Names, name) })
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

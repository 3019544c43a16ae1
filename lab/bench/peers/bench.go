// Package peers measures on a real cluster what layers from other nodes are worth beside LayerLocality alone: nodes are slow to
// the registry and fast to each other. Pods come alone, with images that no node has and that another one has, and in a burst.
package peers

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Rounds is how often each side has all pods.
	Rounds int `json:"rounds"`
	// Nodes, each with Bandwidth bits per second to the registry, and BetweenNodes to other nodes.
	Nodes        int    `json:"nodes"`
	Bandwidth    uint64 `json:"bandwidth"`
	BetweenNodes uint64 `json:"betweenNodes"`
	// Singles is how many pods come alone with images that no node has, and how many with the same images on other nodes.
	Singles int `json:"singles"`
	// Pods come at once, with Images on a base that one node has.
	Pods   int `json:"pods"`
	Images int `json:"images"`
	// BaseBytes are in all images of the burst, and OwnBytes in each. Those of single pods have as many, for themselves.
	BaseBytes int64 `json:"baseBytes"`
	OwnBytes  int64 `json:"ownBytes"`
	// Root is the folder of the repository, LogDir gets the logs of the clusters' components, in a folder for each run.
	Root   string `json:"-"`
	LogDir string `json:"-"`
}

// Side is one of the compared sides.
type Side string

// The sides.
const (
	Alone Side = "layerlocality"
	Peers Side = "peers"
)

// Sides are both, in the order of the first round.
var Sides = []Side{Alone, Peers}

// Turn is all pods of one side, once.
type Turn struct {
	Round int  `json:"round"`
	Side  Side `json:"side"`
	// New are the seconds of pulls of images that no node has, Held those of images that another one has.
	New  []float64 `json:"new"`
	Held []float64 `json:"held"`
	// Burst are the seconds from when each pod of the burst was created until it was ready.
	Burst []float64 `json:"burst"`
	// Nodes has the bytes that each node took from the registry for the burst.
	Nodes scenario.Bytes `json:"nodes"`
}

// Result is everything that was measured.
type Result struct {
	Config  Config    `json:"config"`
	Started time.Time `json:"started"`
	Runs    []Turn    `json:"runs"`
}

const (
	single, burst = "single", "burst"
	milliCPU      = 10
	// within is how long all pods of a burst have to become ready.
	within = 10 * time.Minute
)

// Run measures on clusters that it starts and removes, one after the other.
func Run(ctx context.Context, c Config) (*Result, error) {
	if c.Rounds < 1 || c.Nodes < 2 || c.Singles < 1 || c.Pods < 1 || c.Images < 1 || c.Bandwidth == 0 || c.BetweenNodes == 0 || c.OwnBytes < 2<<20 {
		return nil, fmt.Errorf("%+v: want two nodes, layers of 2 MiB, and at least one of each of the rest", c)
	}
	result := &Result{Config: c, Started: time.Now().UTC().Truncate(time.Second)}
	for round := range c.Rounds {
		for _, side := range bench.InTurns(round, Sides) {
			turn, err := c.run(ctx, round+1, side)
			if err != nil {
				return result, fmt.Errorf("round %d, %s: %w", round+1, side, err)
			}
			result.Runs = append(result.Runs, *turn)
		}
	}
	return result, nil
}

func (c *Config) run(ctx context.Context, round int, side Side) (_ *Turn, err error) {
	logDir, err := filepath.Abs(filepath.Join(c.LogDir, fmt.Sprintf("%d-%s", round, side)))
	if err != nil {
		return nil, err
	}
	profile := scenario.Recommended(scenario.Layers, nil)
	config := cluster.Config{
		PerNode: scenario.TemporaryInStore, // of both sides, as RoomForLayers below: they differ in nothing else
		Name:    "bench-peers", LogDir: logDir, Nodes: c.Nodes, Bandwidth: c.Bandwidth, BetweenNodes: c.BetweenNodes, Flavour: cluster.Patched,
		Kubelet:   cluster.Component{Config: map[string]any{"serializeImagePulls": false}},
		Scheduler: cluster.Component{Config: map[string]any{"profiles": []map[string]any{profile}}},
		Addons:    []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}})},
	}
	var components []string
	if side == Peers {
		config.PerNode, components = scenario.WithPeers, []string{"peers"}
	}
	c.Logf("round %d, %s: starting %d nodes", round, side, c.Nodes)
	lab, running, stop, err := scenario.StartCluster(ctx, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := scenario.RoomForLayers(ctx, running); err != nil {
		return nil, err
	}
	if err := lab.InstallAgent(ctx, c.Root, components...); err != nil {
		return nil, err
	}
	turn := &Turn{Round: round, Side: side}
	if err := c.singles(ctx, lab, turn); err != nil {
		return nil, fmt.Errorf("%w; see %s", err, logDir)
	}
	if err := c.burst(ctx, lab, turn, profile["schedulerName"].(string)); err != nil {
		return nil, fmt.Errorf("%w; see %s", err, logDir)
	}
	c.Logf("round %d, %s: pulls of %.1f s, %.1f s if another node has it; burst %.1f s, %.0f MB", round, side,
		mean(turn.New), mean(turn.Held), mean(turn.Burst), float64(turn.Nodes.Total())/1e6)
	return turn, nil
}

// singles starts one pod after the other.
func (c *Config) singles(ctx context.Context, lab *scenario.Lab, turn *Turn) error {
	nodes := lab.Cluster.Nodes()
	for i := range c.Singles {
		name := fmt.Sprintf("%s:v%d", single, i)
		image, err := scenario.PushOnBase(ctx, lab.Cluster, name, images.Layer{Name: "base of " + name, Size: c.BaseBytes}, c.OwnBytes)
		if err != nil {
			return err
		}
		for held, to := range []*[]float64{&turn.New, &turn.Held} {
			pod := scenario.Pod{Name: fmt.Sprintf("%s-%d-%d", single, i, held), Image: image.Reference, Node: nodes[(i+held)%len(nodes)].Name}
			start, err := lab.Start(ctx, pod, image)
			if err != nil {
				return err
			}
			if start.Pull == 0 {
				return fmt.Errorf("%s was on %s already", image.Reference, pod.Node)
			}
			*to = append(*to, start.Pull.Seconds())
			if err := lab.Serves(ctx, pod.Node, image.Reference, turn.Side == Peers); err != nil {
				return err
			}
		}
	}
	return nil
}

// burst has one node pull the base, and starts all pods at once.
func (c *Config) burst(ctx context.Context, lab *scenario.Lab, turn *Turn, scheduler string) error {
	references := make([]string, c.Images+1)
	for i := range references {
		image, err := scenario.PushOnBase(ctx, lab.Cluster, fmt.Sprintf("%s:v%d", burst, i), images.Layer{Name: burst, Size: c.BaseBytes}, c.OwnBytes)
		if err != nil {
			return err
		}
		references[i] = image.Reference
	}
	first := scenario.Pod{Name: "first", Image: references[c.Images], Node: lab.Cluster.Nodes()[0].Name}
	if err := lab.Submit(ctx, first); err != nil {
		return err
	}
	if err := lab.Ready(ctx, first.Name); err != nil {
		return err
	}
	if err := lab.Serves(ctx, first.Node, first.Image, turn.Side == Peers); err != nil {
		return err
	}
	before, err := scenario.Pulled(lab.Cluster, burst)
	if err != nil {
		return err
	}
	pods := make([]scenario.Pod, c.Pods)
	for i, name := range scenario.Names(burst, c.Pods) {
		pods[i] = scenario.Pod{Name: name, Image: references[i%c.Images], Scheduler: scheduler, MilliCPU: milliCPU}
	}
	if turn.Burst, err = start(ctx, lab, pods); err != nil {
		return err
	}
	after, err := scenario.Pulled(lab.Cluster, burst)
	if err != nil {
		return err
	}
	turn.Nodes = scenario.Bytes{}
	for node, bytes := range after {
		turn.Nodes[node] = bytes - before[node]
	}
	return nil
}

// start creates pods at once and returns for how many seconds each of them was not ready.
func start(ctx context.Context, lab *scenario.Lab, pods []scenario.Pod) (seconds []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	watched, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	group, waiting := errgroup.Group{}, map[string]time.Time{}
	for _, pod := range pods {
		waiting[pod.Name] = time.Now()
		group.Go(func() error { return lab.Submit(ctx, pod) })
	}
	group.Go(func() error {
		_, err := watchtools.UntilWithoutRetry(ctx, watched, func(event watch.Event) (bool, error) {
			if event.Type == watch.Error {
				return false, apierrors.FromObject(event.Object)
			}
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return false, nil
			}
			since, ok := waiting[pod.Name]
			if ok && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				seconds = append(seconds, time.Since(since).Seconds())
				delete(waiting, pod.Name)
			}
			return len(waiting) == 0, nil
		})
		if err != nil {
			err = fmt.Errorf("%d of %d pods were ready: %w", len(seconds), len(pods), err)
		}
		return err
	})
	return seconds, group.Wait()
}

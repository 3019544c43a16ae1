// Package startup measures on a real cluster how layer-aware placement affects
// the start of pods: how long they take, what nodes pull for them, and how the
// load is spread. kube-scheduler's default profile and the recommended one take
// turns with the same workload, each time on nodes without images.
package startup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// Config defines what to measure.
type Config struct {
	bench.Progress
	// Rounds is how often each side plays the workload.
	Rounds int `json:"rounds"`
	// Seed of the workload, and of the choice of images.
	Seed uint64 `json:"seed"`
	// Nodes, each with a link of Bandwidth bits per second.
	Nodes     int    `json:"nodes"`
	Bandwidth uint64 `json:"bandwidth"`
	// Images that pods use, and the compressed bytes of all their layers.
	Images int   `json:"images"`
	Bytes  int64 `json:"bytes"`
	// Pods come one by one, on average one each Interval. The popularity of their
	// images follows Zipf's law with the Exponent.
	Pods     int           `json:"pods"`
	Interval time.Duration `json:"interval"`
	Exponent float64       `json:"exponent"`
	// Bursts, if any, come afterwards: BurstPods pods at once, all with one image that no pod had before.
	Bursts    int `json:"bursts,omitempty"`
	BurstPods int `json:"burstPods,omitempty"`

	// CRIO is the build of CRI-O on the nodes. Ours shares the pull of an image among the
	// pods that want it; upstream's pulls it for each.
	CRIO cluster.Flavour `json:"crio"`
	// SerializeImagePulls is the kubelets' setting: true is their default.
	SerializeImagePulls bool `json:"serializeImagePulls"`

	// LogDir gets the logs of the clusters' components, in a folder for each run.
	// They replace those of an earlier run.
	LogDir string `json:"-"`
	// Simulations is the number of seeds with which the simulator plays the same
	// plan; 0 means no simulation.
	Simulations int `json:"-"`
}

func (c *Config) check() error {
	for _, field := range []struct {
		flag             string
		value, low, high int64
	}{
		{"rounds", int64(c.Rounds), 1, 100},
		{"nodes", int64(c.Nodes), 1, 50},
		{"images", int64(c.Images), 1, 1000},
		{"pods", int64(c.Pods), 1, 1000},
		{"megabytes", c.Bytes / 1e6, 1, 10_000},
		{"bursts", int64(c.Bursts), 0, int64(c.Images) - 1},
		{"burst-pods", int64(c.BurstPods), 0, 100},
	} {
		if field.value < field.low || field.value > field.high {
			return fmt.Errorf("%s: %d, want %d to %d", field.flag, field.value, field.low, field.high)
		}
	}
	if c.CRIO != cluster.Patched && c.CRIO != cluster.Stock {
		return fmt.Errorf("crio: %q, want %s or %s", c.CRIO, cluster.Patched, cluster.Stock)
	}
	if c.Interval <= 0 || c.Bandwidth == 0 || c.Exponent < 0 {
		return fmt.Errorf("interval %s, bandwidth %d, zipf %g: the first two have to be positive, the last not negative", c.Interval, c.Bandwidth, c.Exponent)
	}
	return nil
}

// Side is one of the two compared sides. Its name is that of the policy in the
// simulator.
type Side string

// The sides.
const (
	Stock Side = "default"
	Ours  Side = "layerlocality"
)

// Sides are both sides, in the order of the first round.
var Sides = []Side{Stock, Ours}

// components returns what differs between the sides: the profile of the same
// kube-scheduler, and layer-resolver.
func (s Side) components() (profile map[string]any, more []cluster.Addon) {
	if s == Stock {
		return map[string]any{"schedulerName": scenario.Stock}, nil
	}
	return scenario.Recommended(scenario.Layers, nil), []cluster.Addon{addons.Resolver(cluster.Component{})}
}

// Result is everything that was measured.
type Result struct {
	Config  Config    `json:"config"`
	Started time.Time `json:"started"`
	// Source of the images: a file, or "generated".
	Source string `json:"source"`
	// Of maps each image to the image of the source that it is modelled on.
	Of map[string]string `json:"of"`
	// Shared is the share of the bytes of all images that is in layers of more
	// than one, in the source and among those drawn.
	Shared struct {
		Source float64 `json:"source"`
		Drawn  float64 `json:"drawn"`
	} `json:"shared"`
	Plan *workload.Plan `json:"plan"`
	Runs []Turn         `json:"runs"`
	// Simulated is the simulator's result for the Plan, if it was requested.
	Simulated *evaluation.Report `json:"simulated,omitempty"`
}

// Turn is one run of the plan.
type Turn struct {
	Round int  `json:"round"`
	Side  Side `json:"side"`
	// Metrics are defined as in the simulator, except that a start-up ends when
	// the pod is seen to be ready. DiskBytes are the bytes of the images of each
	// node's pods: what would have been pulled if no layer had been pulled twice.
	evaluation.Metrics
	// Nodes has the bytes that each node pulled.
	Nodes scenario.Bytes `json:"nodes"`
	// Starts of the pods, in the order of the plan.
	Starts []Start `json:"starts"`
}

// Run plays the workload on clusters that it starts and removes, one after the
// other, and lets the simulator play it. It fails if a pod does not start. If
// the simulator fails, the Result still has the measurements.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	all, source, err := dataset.FromEnv()
	if err != nil {
		return nil, err
	}
	result := &Result{Config: c, Started: time.Now().UTC().Truncate(time.Second), Source: source}
	drawn, err := draw(rand.New(rand.NewPCG(c.Seed, 1)), all, c.Images)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	result.Shared.Source, result.Shared.Drawn = shared(all), shared(drawn)
	models := scale(drawn, c.Bytes)
	result.Of = map[string]string{}
	for _, m := range models {
		result.Of[m.reference()] = m.of
	}
	c.Logf("%d of %d images (%s); %.0f %% of their bytes are in layers of more than one, of all images' %.0f %%",
		len(drawn), len(all), source, 100*result.Shared.Drawn, 100*result.Shared.Source)

	for round := range c.Rounds {
		for _, side := range bench.InTurns(round, Sides) {
			run, err := c.run(ctx, round+1, side, models, result)
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", round+1, side, err)
			}
			result.Runs = append(result.Runs, *run)
		}
	}
	if c.Simulations > 0 {
		c.Logf("simulating the same plan with %d seeds", c.Simulations)
		if result.Simulated, err = c.simulate(ctx, result.Plan); err != nil {
			return result, fmt.Errorf("simulate: %w", err)
		}
	}
	return result, nil
}

// run plays the plan once. It makes the plan if there is none yet.
func (c *Config) run(ctx context.Context, round int, side Side, models []model, result *Result) (_ *Turn, err error) {
	logDir, err := filepath.Abs(filepath.Join(c.LogDir, fmt.Sprintf("%d-%s", round, side)))
	if err != nil {
		return nil, err
	}
	profile, more := side.components()
	c.Logf("round %d, %s: starting %d nodes", round, side, c.Nodes)
	lab, running, stop, err := scenario.StartCluster(ctx, cluster.Config{
		Name:      "bench-startup",
		LogDir:    logDir,
		Nodes:     c.Nodes,
		Bandwidth: c.Bandwidth,
		Flavour:   cluster.Patched,
		Runtime:   cluster.Component{Flavour: c.CRIO},
		Kubelet:   cluster.Component{Config: map[string]any{"serializeImagePulls": c.SerializeImagePulls}},
		Scheduler: cluster.Component{Config: map[string]any{"profiles": []map[string]any{profile}}},
		Addons:    more,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	c.Logf("pushing the images")
	images, err := push(ctx, running.Registry().Address, models)
	if err != nil {
		return nil, err
	}
	node, err := c.node(ctx, lab)
	if err != nil {
		return nil, err
	}
	plan, err := c.plan(images, node)
	if err != nil {
		return nil, err
	}
	if result.Plan == nil {
		result.Plan = plan
	} else if !reflect.DeepEqual(plan, result.Plan) {
		return nil, errors.New("the nodes or the images are not those of the first run: nothing can be compared")
	}

	c.Logf("%d pods of %d images, the last after %.0f s", len(plan.Events), len(plan.Images), plan.Events[len(plan.Events)-1].At.Seconds())
	starts, err := play(ctx, lab, plan, profile["schedulerName"].(string))
	if err != nil {
		return nil, fmt.Errorf("%w; see %s", err, logDir)
	}
	bytes, err := scenario.Pulled(running, repository)
	if err != nil {
		return nil, err
	}
	run := &Turn{Round: round, Side: side, Metrics: measure(plan, starts, bytes.Total()), Nodes: bytes, Starts: starts}
	c.Logf("round %d, %s: %s", round, side, describe(&run.Metrics))
	return run, nil
}

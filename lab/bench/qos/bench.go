// Package qos measures what QosAware makes of the promises of a cluster that has not enough
// room for all: how many workloads get less than they were promised, beside PrioritySort and
// DefaultPreemption. etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real;
// nodes and kubelets are kwok's. The program in the folder measure, which is built against the
// patched Kubernetes, measures what the plugin costs the queue.
package qos

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/lab/bench"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

// Settings are what results have in common that may be compared.
type Settings struct {
	// Scale is by what the published times are divided, and rates multiplied.
	Scale float64 `json:"scale"`
	// Minutes is how long an arm takes, from the creation of the first workload on.
	Minutes float64 `json:"minutes"`
	// Nodes, each with room for podsPerNode pods.
	Nodes int `json:"nodes"`
}

// Config defines what to measure.
type Config struct {
	bench.Progress
	Settings
	// Measure are names of Arms, and Cost.
	Measure []string
	// Earlier, if set, are results with the same Settings: what they have is not measured
	// again.
	Earlier *Result
	// LogDir gets the logs of the components, in a folder for each arm.
	LogDir string
	// Figure is the file that the figure goes to; none if it is empty.
	Figure string
}

// Arm is a policy, and the workloads that it is tried with.
type Arm struct {
	Name string
	// Promises has QosAware decide, and not PrioritySort and DefaultPreemption.
	Promises bool
	// Gold and Silver are how many workloads of SLO 1, with a higher priority, and of SLO .5
	// there are.
	Gold, Silver int
	// Pull is how long a pod that has its node takes to be ready, before Scale.
	Pull time.Duration
}

// The policies as parts of the names of arms.
const (
	priorities = "priorities"
	qosaware   = "qosaware"
	pull       = "pull"
)

// Arms are all of them: the published 100 + 160 workloads, room for 200, and 100 + 200, and one
// that explains.
var Arms = []Arm{
	{Name: priorities + "-160", Gold: 100, Silver: 160},
	{Name: qosaware + "-160", Promises: true, Gold: 100, Silver: 160},
	{Name: priorities + "-200", Gold: 100, Silver: 200},
	{Name: qosaware + "-200", Promises: true, Gold: 100, Silver: 200},
	{Name: pull + "-160", Promises: true, Gold: 100, Silver: 160, Pull: time.Minute},
}

// Cost is the name of what is measured beside the arms: what the plugin costs.
const Cost = "cost"

// Names are all that can be measured, in order.
func Names() []string {
	names := make([]string, 0, len(Arms)+1)
	for _, arm := range Arms {
		names = append(names, arm.Name)
	}
	return append(names, Cost)
}

// podsPerNode is the room of a node.
const podsPerNode = 10

// slos are the promises of the two kinds of workloads.
const (
	goldSLO   = 1
	silverSLO = .5
)

// The published times.
const (
	safetyMargin       = 30 * time.Second
	minimumRunningTime = 30 * time.Second
	longWait           = configv1.DefaultLongWait
)

func (c *Config) check() error {
	if !(c.Scale >= 1 && c.Scale <= 60) || !(c.Minutes >= .5 && c.Minutes <= 120) {
		return fmt.Errorf("--scale %g --minutes %g: want 1 to 60, and .5 to 120", c.Scale, c.Minutes)
	}
	if c.Nodes < 1 || c.Nodes > 1000 {
		return fmt.Errorf("--nodes %d: want 1 to 1000", c.Nodes)
	}
	if len(c.Measure) == 0 {
		return errors.New("--measure names nothing: want some of " + strings.Join(Names(), ","))
	}
	for _, name := range c.Measure {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("--measure: %q is not one of %s", name, strings.Join(Names(), ","))
		}
	}
	if c.Earlier != nil && !reflect.DeepEqual(c.Earlier.Settings, c.Settings) {
		return fmt.Errorf("--resume: what was measured has other settings, %+v: give it these, or measure all anew", c.Earlier.Settings)
	}
	return nil
}

// scaled returns a published time.
func (s Settings) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / s.Scale)
}

// Run measures one after the other, each on a control plane of its own, which it removes. If
// one fails, the Result has those before.
func Run(ctx context.Context, config Config) (*Result, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	result := &Result{Settings: config.Settings}
	if config.Earlier != nil {
		result = config.Earlier
	}
	for _, arm := range Arms {
		if !slices.Contains(config.Measure, arm.Name) || result.of(arm.Name) != nil {
			continue
		}
		outcome, err := config.play(ctx, arm)
		if err != nil {
			return result.orNothing(), fmt.Errorf("%s: %w", arm.Name, err)
		}
		result.Outcomes = append(result.Outcomes, *outcome)
	}
	if slices.Contains(config.Measure, Cost) && result.Cost == nil {
		cost, err := measureCost(ctx, &config.Progress)
		if err != nil {
			return result.orNothing(), err
		}
		result.Cost = cost
	}
	if config.Figure == "" {
		return result, nil
	}
	return result, result.draw(config.Figure)
}

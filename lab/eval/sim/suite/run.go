// Package suite defines which workloads are played with which policies to answer
// which question, and plays them.
package suite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// Case is one point of an experiment: a scenario that is played with each of its
// policies.
type Case struct {
	Scenario Scenario
	// X is the value on the axis of the experiment.
	X        float64
	Policies []sim.Policy
	Model    sim.Model
	// Seeds is the maximum number of seeds it is played with; 0 means all.
	Seeds int
}

// seeds returns with how many of all seeds a case is played.
func (c *Case) seeds(all int) int {
	if c.Seeds > 0 {
		return min(c.Seeds, all)
	}
	return all
}

// Experiment defines what is played for an evaluation.Experiment.
type Experiment struct {
	evaluation.Experiment
	Cases []Case
}

// Progress is called with how many of all runs are done, one call after another.
type Progress func(done, all int)

// Play plays an experiment with the seeds 1 to seeds, parallel runs at a time.
// Results are in the order of cases, seeds and policies, whatever parallel is. The
// first error ends all runs.
func Play(ctx context.Context, e Experiment, d *Data, seeds, parallel int, progress Progress) (evaluation.Experiment, error) {
	fail := func(err error) (evaluation.Experiment, error) {
		return evaluation.Experiment{}, fmt.Errorf("experiment %s: %w", e.Name, err)
	}
	if seeds < 1 || parallel < 1 {
		return fail(fmt.Errorf("%d seeds, %d runs at the same time: want at least one of both", seeds, parallel))
	}
	all := 0
	for _, c := range e.Cases {
		all += c.seeds(seeds) * len(c.Policies)
	}
	result := e.Experiment
	result.Runs = make([]evaluation.Run, all)
	var mu sync.Mutex
	done, next := 0, 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, c := range e.Cases {
		for seed := uint64(1); seed <= uint64(c.seeds(seeds)); seed++ {
			// The first policy draws the plan, and none changes it.
			plan := sync.OnceValues(func() (*workload.Plan, error) {
				return c.Scenario.Plan(rand.New(rand.NewPCG(seed, 0)), d)
			})
			for _, policy := range c.Policies {
				run := &result.Runs[next]
				next++
				group.Go(func() error {
					if err := ctx.Err(); err != nil {
						return err
					}
					*run = evaluation.Run{Scenario: c.Scenario.Name, Policy: policy.Name, X: c.X, Seed: seed}
					p, err := plan()
					if err == nil {
						run.Metrics, err = sim.Run(ctx, p, policy, c.Model, seed)
					}
					if err != nil {
						return fmt.Errorf("scenario %s, seed %d: %w", run.Scenario, seed, err)
					}
					mu.Lock()
					defer mu.Unlock()
					if done++; progress != nil {
						progress(done, all)
					}
					return nil
				})
			}
		}
	}
	if err := group.Wait(); err != nil {
		return fail(err)
	}
	return result, nil
}

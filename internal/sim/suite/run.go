// Package suite says which workloads are played with which policies to answer which
// question, and plays them.
package suite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/internal/evaluation"
	"github.com/layer-locality/layer-locality/internal/sim"
	"github.com/layer-locality/layer-locality/internal/sim/workload"
)

// Case is one point of an experiment: a scenario that is played with each of some
// policies.
type Case struct {
	Scenario Scenario
	// X is the value on the axis of the experiment.
	X        float64
	Policies []sim.Policy
	Model    sim.Model
}

// Experiment is what is to be played for an evaluation.Experiment.
type Experiment struct {
	evaluation.Experiment
	Cases []Case
}

// Progress is told how many of all runs are done.
type Progress func(done, all int)

// Play plays an experiment with the seeds 1 to seeds, some at the same time. Runs
// come out in the order of cases, seeds and policies.
func Play(ctx context.Context, e Experiment, d *Data, seeds, parallel int, progress Progress) (evaluation.Experiment, error) {
	type job struct {
		c    *Case
		seed uint64
		plan func() (*workload.Plan, error)
		runs []evaluation.Run
	}
	var jobs []*job
	all := 0
	for i := range e.Cases {
		c := &e.Cases[i]
		for seed := uint64(1); seed <= uint64(seeds); seed++ { //nolint:gosec // a small number
			jobs = append(jobs, &job{c: c, seed: seed, plan: func() (*workload.Plan, error) {
				return c.Scenario.Plan(rand.New(rand.NewPCG(seed, 0)), d)
			}})
			all += len(c.Policies)
		}
	}
	var done atomic.Int64
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, j := range jobs {
		group.Go(func() error {
			plan, err := j.plan()
			if err != nil {
				return fmt.Errorf("scenario %s, seed %d: %w", j.c.Scenario.Name, j.seed, err)
			}
			for _, policy := range j.c.Policies {
				m, err := sim.Run(ctx, plan, policy, j.c.Model, j.seed)
				if err != nil {
					return fmt.Errorf("scenario %s, seed %d: %w", j.c.Scenario.Name, j.seed, err)
				}
				j.runs = append(j.runs, evaluation.Run{
					Scenario: j.c.Scenario.Name, Policy: policy.Name, X: j.c.X, Seed: j.seed, Metrics: m,
				})
				if progress != nil {
					mu.Lock()
					progress(int(done.Add(1)), all)
					mu.Unlock()
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return evaluation.Experiment{}, fmt.Errorf("experiment %s: %w", e.Name, err)
	}
	result := e.Experiment
	for _, j := range jobs {
		result.Runs = slices.Concat(result.Runs, j.runs)
	}
	return result, nil
}

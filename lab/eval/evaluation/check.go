package evaluation

import (
	"fmt"
	"math"
)

// Check returns what is wrong with a report that was read from a file: an
// experiment without a name or with the name of another, an X without an axis, or
// two runs of one policy on one workload.
func (r *Report) Check() error {
	names := map[string]bool{}
	for i, experiment := range r.Experiments {
		if experiment.Name == "" {
			return fmt.Errorf("experiment %d has no name", i)
		}
		if names[experiment.Name] {
			return fmt.Errorf("two experiments are named %q", experiment.Name)
		}
		names[experiment.Name] = true
		if err := experiment.check(); err != nil {
			return fmt.Errorf("experiment %q: %w", experiment.Name, err)
		}
	}
	return nil
}

func (e *Experiment) check() error {
	type key struct {
		scenario, policy string
		x                float64
		seed             uint64
	}
	seen := map[key]bool{}
	for _, run := range e.Runs {
		if run.X != 0 && e.Axis == "" || math.IsNaN(run.X) || math.IsInf(run.X, 0) {
			return fmt.Errorf("policy %q in scenario %q has x %v with axis %q", run.Policy, run.Scenario, run.X, e.Axis)
		}
		k := key{run.Scenario, run.Policy, run.X, run.Seed}
		if seen[k] {
			return fmt.Errorf("two runs of policy %q in scenario %q with x %v and seed %d", k.policy, k.scenario, k.x, k.seed)
		}
		seen[k] = true
	}
	return nil
}

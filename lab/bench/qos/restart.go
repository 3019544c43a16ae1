package qos

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// Restarts are errors of a restart: by how much the share that a workload got according to
// QosAware changed otherwise than what was measured, at most.
type Restarts struct {
	// Stopped is that of a scheduler that was asked to end.
	Stopped float64 `json:"stopped"`
	// Killed is that of one that was not, at any time since it last saved what it knew.
	Killed float64 `json:"killed"`
}

// restart stops and starts the scheduler, and kills and starts it.
func (c *Config) restart(ctx context.Context, lab *scenario.Lab, measured *ledger) (*Restarts, error) {
	scheduler := lab.Cluster.Scheduler()
	restarts := &Restarts{}
	for _, way := range []struct {
		what string
		end  func(context.Context) error
		into *float64
	}{{"stopped", scheduler.Stop, &restarts.Stopped}, {"killed", scheduler.Kill, &restarts.Killed}} {
		before, measuredBefore, err := both(ctx, lab, measured)
		if err != nil {
			return nil, err
		}
		if err := way.end(ctx); err != nil {
			return nil, err
		}
		if err := scheduler.Start(ctx); err != nil {
			return nil, err
		}
		// What was saved is there before the pods are.
		err = poll.Until(ctx, 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
			running, waiting := measured.count()
			table, err := lab.Promises(ctx, true)
			if known := strings.Count(table, "\n") - 1; err == nil && known < running+waiting {
				err = fmt.Errorf("QosAware has %d of %d pods", known, running+waiting)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("after the scheduler was %s: %w", way.what, err)
		}
		after, measuredAfter, err := both(ctx, lab, measured)
		if err != nil {
			return nil, err
		}
		for name, b := range before {
			said, was := after[name]-b, measuredAfter[name].quality()-measuredBefore[name].quality()
			*way.into = max(*way.into, math.Abs(said-was))
		}
		c.Logf("a scheduler that was %s: its figures are off by %.4f at most", way.what, *way.into)
	}
	return restarts, nil
}

// both returns QosAware's figures of workloads, and what was measured, at the same time.
func both(ctx context.Context, lab *scenario.Lab, measured *ledger) (map[string]float64, map[string]service, error) {
	said, err := lab.Services(ctx)
	return said, measured.services(), err
}

/*
Copyright The Kubernetes Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package imagelayers

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// reportDelay is how long after the end of a pull it is reported at most, so that one
	// report has all that end together. Half of it is jitter: many nodes may end a pull at
	// the same moment.
	reportDelay = time.Second
	// reportInterval is the least time between two reports: a node writes its status every
	// ten seconds anyway.
	reportInterval = 10 * time.Second
)

// Pulls has a report follow the end of image pulls, soon but not often.
//
// It is safe for concurrent use.
type Pulls struct {
	ended chan struct{}
}

// NewPulls returns Pulls that have seen none.
func NewPulls() *Pulls { return &Pulls{ended: make(chan struct{}, 1)} }

// Ended notes that an image was pulled. It never waits.
func (p *Pulls) Ended() {
	select {
	case p.ended <- struct{}{}:
	default: // another is to be reported already, and this one with it
	}
}

// Report calls report half a second to a second after the end of a pull, and at most every
// ten seconds, until the context ends.
func (p *Pulls) Report(ctx context.Context, report func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.ended:
		}
		if !sleep(ctx, reportDelay/2+rand.N(reportDelay/2)) {
			return
		}
		// What ended during the delay is in this report.
		select {
		case <-p.ended:
		default:
		}
		report(ctx)
		if !sleep(ctx, reportInterval) {
			return
		}
	}
}

// sleep returns whether the time passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

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
	"slices"
	"sync"
	"time"
)

const (
	// RetryInterval is how long layers are left out of the node status after an
	// API server did not keep them.
	RetryInterval = 10 * time.Minute
	// maxLosses is how often within RetryInterval layers that an API server kept
	// may be gone again. One more is a refusal.
	maxLosses = 2
)

// Guard stops layers from being sent to an API server that does not keep them:
// one of an earlier version or with the feature off. The kubelet writes its
// Node when what it computed differs from what the server has, every 10 s
// instead of every 5 min if the server drops a part each time.
//
// The answer to a write does not always show that: several API servers, of
// which some drop layers, can have one address, and a client whose types have no
// layers can write the status back without them. The Guard also counts how
// often layers that were kept are gone later.
//
// It is safe for concurrent use.
type Guard struct {
	now func() time.Time

	mu sync.Mutex
	// refused is whether the last layers sent were not kept, or were lost too
	// often.
	refused bool
	// retryAt is when layers may be sent again after they were refused.
	retryAt time.Time
	// losses are the times of the last losses.
	losses []time.Time
	// trialEnd is until when one loss is a refusal again, and an answer that
	// keeps layers proves nothing: those that were lost had been kept, too.
	trialEnd time.Time
}

// NewGuard returns a Guard that lets layers through until the first refusal.
func NewGuard(now func() time.Time) *Guard { return &Guard{now: now} }

// Allow returns whether layers may be reported now.
func (g *Guard) Allow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.refused || !g.now().Before(g.retryAt)
}

// Observe notes whether the answer to a write has the layers that were sent. It
// reports whether that differs from the time before, that is, whether it is worth
// logging.
func (g *Guard) Observe(kept bool) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if !kept {
		return g.refuse(now)
	}
	if !g.refused || now.Before(g.trialEnd) {
		return false
	}
	g.refused = false
	return true
}

// Lost notes that layers are gone which an earlier answer had. It reports
// whether they are refused from now on, and were not before.
func (g *Guard) Lost() (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	onTrial := now.Before(g.trialEnd)
	if !onTrial {
		g.refused = false // a trial, if there was one, is passed
	}
	g.losses = slices.DeleteFunc(g.losses, func(at time.Time) bool { return now.Sub(at) >= RetryInterval })
	g.losses = append(g.losses, now)
	if len(g.losses) <= maxLosses && !onTrial {
		return false
	}
	g.losses = nil
	g.trialEnd = now.Add(2 * RetryInterval) // the second half comes after the pause
	return g.refuse(now)
}

// refuse begins a pause. It returns whether layers were let through before.
func (g *Guard) refuse(now time.Time) (changed bool) {
	changed = !g.refused
	g.refused = true
	g.retryAt = now.Add(RetryInterval)
	return changed
}

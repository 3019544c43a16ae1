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
	"sync"
	"time"
)

// RetryInterval is how long layers are left out of the node status after an
// API server did not keep them.
const RetryInterval = 10 * time.Minute

// Guard stops layers from being sent to an API server that does not keep them:
// one of an earlier version or with the feature off. The kubelet writes its
// Node when what it computed differs from what the server has, every 10 s
// instead of every 5 min if the server drops a part each time.
//
// It is safe for concurrent use.
type Guard struct {
	now func() time.Time

	mu sync.Mutex
	// refused is whether the last layers sent were not kept.
	refused bool
	// retryAt is when layers may be sent again after they were refused.
	retryAt time.Time
}

// NewGuard returns a Guard that lets layers through until the first refusal.
func NewGuard(now func() time.Time) *Guard { return &Guard{now: now} }

// Allow returns whether layers may be reported now.
func (g *Guard) Allow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.refused || !g.now().Before(g.retryAt)
}

// Observe tells the guard what became of layers that were sent. It returns
// whether that differs from the time before, that is, whether it is worth
// logging.
func (g *Guard) Observe(kept bool) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed = g.refused == kept
	g.refused = !kept
	if g.refused {
		g.retryAt = g.now().Add(RetryInterval)
	}
	return changed
}

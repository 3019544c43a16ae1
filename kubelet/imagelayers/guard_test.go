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
	"testing"
	"time"
)

func TestGuard(t *testing.T) {
	const kept, refused = true, false
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	guard := NewGuard(func() time.Time { return now })
	allow := func(want bool) {
		t.Helper()
		if got := guard.Allow(); got != want {
			t.Errorf("at %v: allowed %v, want %v", now.Format(time.TimeOnly), got, want)
		}
	}
	observe := func(outcome, changed bool) {
		t.Helper()
		if got := guard.Observe(outcome); got != changed {
			t.Errorf("at %v: changed %v, want %v", now.Format(time.TimeOnly), got, changed)
		}
	}

	allow(true)
	observe(kept, false)
	allow(true)

	observe(refused, true)
	allow(false)
	now = now.Add(RetryInterval - 1)
	allow(false)
	now = now.Add(1)
	allow(true)
	// Nothing was sent yet: the next status is still free to try.
	now = now.Add(time.Hour)
	allow(true)

	// Refused again: as long a pause again, but no news.
	observe(refused, false)
	allow(false)
	now = now.Add(RetryInterval)
	allow(true)

	observe(kept, true)
	allow(true)
	observe(kept, false)

	// News again after it worked.
	observe(refused, true)
	allow(false)
}

// TestGuardCountsLosses: an answer that keeps layers proves nothing when they are
// gone later.
func TestGuardCountsLosses(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	guard := NewGuard(func() time.Time { return now })
	expect := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("at %v: %s is %v, want %v", now.Format(time.TimeOnly), what, got, want)
		}
	}

	// Now and then is no refusal, for hours.
	for range 30 {
		expect("lost", guard.Lost(), false)
		expect("kept", guard.Observe(true), false)
		expect("allowed", guard.Allow(), true)
		now = now.Add(RetryInterval/2 + time.Second)
	}
	now = now.Add(RetryInterval)

	// The third within ten minutes is one.
	expect("first loss", guard.Lost(), false)
	now = now.Add(10 * time.Second)
	expect("second loss", guard.Lost(), false)
	now = now.Add(10 * time.Second)
	expect("third loss", guard.Lost(), true)
	expect("allowed", guard.Allow(), false)

	// After a pause, one is enough, and no news.
	now = now.Add(RetryInterval)
	expect("allowed", guard.Allow(), true)
	expect("kept", guard.Observe(true), false)
	now = now.Add(10 * time.Second)
	expect("lost again", guard.Lost(), false)
	expect("allowed", guard.Allow(), false)

	// Kept and not lost for as long as the pause was: as in the beginning.
	now = now.Add(RetryInterval)
	expect("kept", guard.Observe(true), false)
	now = now.Add(RetryInterval)
	expect("kept for long", guard.Observe(true), true)
	expect("first loss", guard.Lost(), false)
	expect("second loss", guard.Lost(), false)
	expect("third loss", guard.Lost(), true)

	// A trial also ends by itself.
	now = now.Add(3 * RetryInterval)
	expect("first loss", guard.Lost(), false)
	expect("allowed", guard.Allow(), true)
	expect("second loss", guard.Lost(), false)
	expect("third loss", guard.Lost(), true)

	// A refusal by an answer ends a trial as it ends everything else.
	now = now.Add(RetryInterval)
	expect("refused", guard.Observe(false), false)
	expect("allowed", guard.Allow(), false)
}

// The kubelet computes its status and reads answers in goroutines of its own. The
// race detector looks at this.
func TestGuardIsSafeForConcurrentUse(t *testing.T) {
	guard := NewGuard(time.Now)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range 100 {
				guard.Allow()
				guard.Observe(i%2 == 0)
				guard.Lost()
			}
		})
	}
	group.Wait()
}

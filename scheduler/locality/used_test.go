package locality

import (
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/imageref"
)

// TestUsedIsBounded: images that pods use are remembered up to a bound. At the bound nothing is
// forgotten; above it, what was used too long ago, and if that is not enough the older half.
func TestUsedIsBounded(t *testing.T) {
	name := func(i int) []imageref.Canonical { return canonical(fmt.Sprintf("example.com/image:%d", i)) }
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	fill := func(n int, since time.Time) *unlistedImages {
		r := &unlistedImages{}
		for i := range n {
			r.use(name(i), at(i), since)
		}
		return r
	}
	if r := fill(maxUsed, at(10*maxUsed)); len(r.used) != maxUsed {
		t.Errorf("at the bound %d of %d are left", len(r.used), maxUsed)
	}
	if r := fill(maxUsed+1, at(100)); len(r.used) != maxUsed+1-100 {
		t.Errorf("above the bound %d are left, want all but the 100 that were used long ago", len(r.used))
	}
	r := fill(maxUsed+1, at(0))
	_, oldest := r.used[name(0)[0]]
	_, newest := r.used[name(maxUsed)[0]]
	if want := maxUsed + 1 - (maxUsed+1)/2; len(r.used) != want || oldest || !newest {
		t.Errorf("%d are left, want %d; the oldest: %t, the newest: %t", len(r.used), want, oldest, newest)
	}
}

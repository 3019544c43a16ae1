package usage

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// A namespace at its limit loses its own oldest, unused ones first. If all together are at
// theirs, those with the most lose.
func TestQuota(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tenantOf := func(namespace string, inUse bool, minutes int) Tenant {
		return Tenant{Namespaces: []string{namespace}, InUse: inUse, Since: begin.Add(time.Duration(minutes) * time.Minute)}
	}
	recount := func(limit Limits, counts map[string]int) (left map[string]int, gone []string) {
		var held []Held
		for _, namespace := range slices.Sorted(maps.Keys(counts)) {
			for i := range counts[namespace] {
				held = append(held, Held{Reference: fmt.Sprint(namespace, i), Units: 1, Tenant: tenantOf(namespace, i%2 == 0, i)})
			}
		}
		q := NewQuota(limit)
		q.Recount(held, func(reference string) { gone = append(gone, reference) })
		return q.each, gone
	}
	for _, c := range []struct {
		name   string
		limit  Limits
		counts map[string]int
		left   map[string]int
	}{
		{"below", Limits{100, 16}, map[string]int{"a": 15, "b": 3}, map[string]int{"a": 15, "b": 3}},
		{"one at its limit", Limits{100, 16}, map[string]int{"a": 16, "b": 3}, map[string]int{"a": 13, "b": 3}},
		{"below, beside one at its limit", Limits{100, 16}, map[string]int{"a": 16, "b": 15}, map[string]int{"a": 13, "b": 15}},
		{"of no known namespace", Limits{100, 16}, map[string]int{"": 50, "b": 3}, map[string]int{"": 50, "b": 3}},
		{"of no known namespace, all together", Limits{40, 16}, map[string]int{"": 50, "b": 8}, map[string]int{"": 27, "b": 8}},
		{"far above", Limits{100, 16}, map[string]int{"a": 1000, "b": 3}, map[string]int{"a": 13, "b": 3}},
		{"all together", Limits{40, 100}, map[string]int{"a": 30, "b": 8, "c": 4}, map[string]int{"a": 23, "b": 8, "c": 4}},
		{"all together, just full", Limits{40, 100}, map[string]int{"a": 30, "b": 6, "c": 4}, map[string]int{"a": 25, "b": 6, "c": 4}},
		{"all together, one less", Limits{40, 100}, map[string]int{"a": 29, "b": 6, "c": 4}, map[string]int{"a": 29, "b": 6, "c": 4}},
		{"many small", Limits{16, 100}, map[string]int{"a": 6, "b": 6, "c": 6}, map[string]int{"a": 4, "b": 4, "c": 4}},
	} {
		left, gone := recount(c.limit, c.counts)
		if !maps.Equal(left, c.left) {
			t.Errorf("%s: %v are left, want %v", c.name, left, c.left)
		}
		sum := 0
		for namespace, n := range c.counts {
			sum += n - c.left[namespace]
		}
		if len(gone) != sum {
			t.Errorf("%s: %d are removed, want %d", c.name, len(gone), sum)
		}
	}
	if _, gone := recount(Limits{100, 16}, map[string]int{"a": 16}); !slices.Equal(gone, []string{"a1", "a3", "a5"}) {
		t.Errorf("removed are %q, not the oldest unused", gone)
	}
}

// What was admitted while references are counted is not forgotten.
func TestQuotaAdmits(t *testing.T) {
	q := NewQuota(Limits{All: 4, Each: 3})
	expect := func(want bool, namespaces ...string) {
		t.Helper()
		if got := q.Admit(namespaces, 1); got != want {
			t.Errorf("%q admitted: %t", namespaces, got)
		}
	}
	expect(true, "a")
	q.Begin()
	expect(true, "a")
	q.Recount([]Held{{Reference: "first", Units: 1, Tenant: Tenant{Namespaces: []string{"a"}}}}, nil)
	expect(true, "a")
	expect(false, "a")
	expect(true, "a", "b") // counts for b
	expect(false, "b")     // no room at all

	q.Begin()
	q.Recount(nil, nil)
	if q.all != 0 {
		t.Errorf("%+v are counted, want none: what came before was counted", q.counts)
	}
}

// An image of hundreds of layers counts as several: it is as large.
func TestQuotaCountsLayers(t *testing.T) {
	for layers, want := range map[int]int{0: 1, 1: 1, 64: 1, 65: 2, 512: 8} {
		if got := Units(layers); got != want {
			t.Errorf("%d layers count %d times, want %d", layers, got, want)
		}
	}
	q := NewQuota(Limits{All: 40, Each: 16})
	first, second := q.Admit([]string{"a"}, 8), q.Admit([]string{"a"}, 8)
	if !first || !second || q.Admit([]string{"a"}, 1) || q.HasRoom([]string{"a"}, false) || !q.HasRoom([]string{"b"}, false) {
		t.Errorf("admitted %+v", q.counts)
	}
	q.Begin()
	var held []Held
	for i := range 3 {
		held = append(held, Held{Reference: fmt.Sprint(i), Units: 8, Tenant: Tenant{Namespaces: []string{"a"}, Since: time.Unix(int64(i), 0)}})
	}
	var gone []string
	q.Recount(held, func(reference string) { gone = append(gone, reference) })
	if !slices.Equal(gone, []string{"0", "1"}) || q.all != 8 {
		t.Errorf("removed %q, %d are left", gone, q.all)
	}
}

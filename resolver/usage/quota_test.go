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
	fill := func(limit Limits, counts map[string]int) *TenantUsage {
		all := newTenantUsage(limit)
		for _, namespace := range slices.Sorted(maps.Keys(counts)) {
			for i := range counts[namespace] {
				all.Count(fmt.Sprint(namespace, i), 1, tenantOf(namespace, i%2 == 0, i))
			}
		}
		return all
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
		all := fill(c.limit, c.counts)
		gone := all.Excess()
		if !maps.Equal(all.each, c.left) {
			t.Errorf("%s: %v are left, want %v", c.name, all.each, c.left)
		}
		sum := 0
		for namespace, n := range c.counts {
			sum += n - c.left[namespace]
		}
		if len(gone) != sum {
			t.Errorf("%s: %d are removed, want %d", c.name, len(gone), sum)
		}
	}
	if gone := fill(Limits{100, 16}, map[string]int{"a": 16}).Excess(); !slices.Equal(gone, []string{"a1", "a3", "a5"}) {
		t.Errorf("removed are %q, not the oldest unused", gone)
	}
}

// What was admitted while references are counted is not forgotten.
func TestQuotaAdmits(t *testing.T) {
	c := NewQuota(Limits{All: 4, Each: 3})
	expect := func(want bool, namespaces ...string) {
		t.Helper()
		if got := c.Admit(namespaces, 1); got != want {
			t.Errorf("%q admitted: %t", namespaces, got)
		}
	}
	expect(true, "a")
	resolved, unresolved, _ := c.Begin()
	expect(true, "a")
	resolved.add("a", 1)
	c.Set(resolved, unresolved)
	expect(true, "a")
	expect(false, "a")
	expect(true, "a", "b") // counts for b
	expect(false, "b")     // no room at all

	for range MaxUnresolved.Each {
		c.AdmitUnresolved([]string{"a"})
	}
	resolved, unresolved, _ = c.Begin()
	admitted := c.AdmitUnresolved([]string{"b"})
	c.Set(resolved, unresolved)
	if !admitted || c.unresolved.all != 1 || c.unresolved.each["b"] != 1 {
		t.Errorf("not resolved: %+v, want the one that came meanwhile", c.unresolved)
	}
	resolved, unresolved, _ = c.Begin()
	c.Set(resolved, unresolved)
	if c.unresolved.all != 0 {
		t.Errorf("not resolved: %+v, want none: what came before was counted", c.unresolved)
	}
}

// An image of hundreds of layers counts as several: it is as large.
func TestQuotaCountsLayers(t *testing.T) {
	for layers, want := range map[int]int{0: 1, 1: 1, 64: 1, 65: 2, 512: 8} {
		if got := Units(layers); got != want {
			t.Errorf("%d layers count %d times, want %d", layers, got, want)
		}
	}
	c := NewQuota(Limits{All: 40, Each: 16})
	first, second := c.Admit([]string{"a"}, 8), c.Admit([]string{"a"}, 8)
	if !first || !second || c.Admit([]string{"a"}, 1) || c.HasRoom([]string{"a"}) || !c.HasRoom([]string{"b"}) {
		t.Errorf("admitted %+v", c.resolved)
	}
	all := newTenantUsage(Limits{All: 40, Each: 16})
	for i := range 3 {
		all.Count(fmt.Sprint(i), 8, Tenant{Namespaces: []string{"a"}, Since: time.Unix(int64(i), 0)})
	}
	if gone := all.Excess(); !slices.Equal(gone, []string{"0", "1"}) || all.all != 8 {
		t.Errorf("removed %q, %d are left", gone, all.all)
	}
}

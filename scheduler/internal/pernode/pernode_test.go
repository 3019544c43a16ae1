package pernode

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func named(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// TestMemory computes once for an object and a version.
func TestMemory(t *testing.T) {
	var m Memory[int]
	computed := 0
	of := func(node *v1.Node, version uint64) int {
		return *m.Of(node, version, func() int { computed++; return computed })
	}
	first, again := named("n"), named("n")
	for i, step := range []struct {
		node    *v1.Node
		version uint64
		want    int
	}{{first, 0, 1}, {first, 0, 1}, {again, 0, 2}, {again, 0, 2}, {again, 1, 3}, {first, 1, 4}, {named("m"), 1, 5}, {first, 1, 4}} {
		if got := of(step.node, step.version); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	if m.Len() != 2 {
		t.Errorf("%d nodes are remembered", m.Len())
	}
}

// TestBounded has more nodes come and go than are remembered, from several goroutines.
func TestBounded(t *testing.T) {
	var m Memory[string]
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			for j := range Most {
				name := fmt.Sprint("n-", i, "-", j)
				if got := *m.Of(named(name), 0, func() string { return name }); got != name {
					t.Errorf("%s: %s", name, got)
				}
			}
		})
	}
	running.Wait()
	if m.Len() > Most+4 {
		t.Errorf("%d nodes are remembered", m.Len())
	}
}

// TestContended has several goroutines ask for one name with objects and versions that change:
// each gets what was computed for its own.
func TestContended(t *testing.T) {
	type seen struct {
		node    *v1.Node
		version uint64
	}
	var m Memory[seen]
	nodes := []*v1.Node{named("n"), named("n"), named("n")}
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			for j := range 20_000 {
				want := seen{nodes[(i+j)%len(nodes)], uint64(j % 5)}
				if got := *m.Of(want.node, want.version, func() seen { return want }); got != want {
					t.Errorf("%p in version %d: %p in version %d", want.node, want.version, got.node, got.version)
				}
			}
		})
	}
	running.Wait()
	if m.Len() != 1 {
		t.Errorf("%d nodes are remembered, want the one", m.Len())
	}
}

// TestGone: what is remembered of a Node does not keep it in memory, and is not that of another
// one, whatever its address.
func TestGone(t *testing.T) {
	var m Memory[string]
	collected := func() weak.Pointer[v1.Node] {
		node := named("n")
		m.Of(node, 0, func() string { return "old" })
		return weak.Make(node)
	}()
	for end := time.Now().Add(time.Minute); collected.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("the node is kept")
		}
	}
	if got := *m.Of(named("n"), 0, func() string { return "new" }); got != "new" || m.Len() != 1 {
		t.Errorf("a new node of that name: %s, %d are remembered", got, m.Len())
	}
}

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

// TestMemory computes once for an object.
func TestMemory(t *testing.T) {
	var m Memory[int]
	computed := 0
	of := func(node *v1.Node) int {
		return *m.Of(node, func() int { computed++; return computed })
	}
	first, again := named("n"), named("n")
	for i, step := range []struct {
		node *v1.Node
		want int
	}{{first, 1}, {first, 1}, {again, 2}, {again, 2}, {first, 3}, {named("m"), 4}, {first, 3}} {
		if got := of(step.node); got != step.want {
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
				if got := *m.Of(named(name), func() string { return name }); got != name {
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

// TestContended has several goroutines ask for one name with objects that change: each gets what was
// computed for its own.
func TestContended(t *testing.T) {
	var m Memory[*v1.Node]
	nodes := []*v1.Node{named("n"), named("n"), named("n")}
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			for j := range 20_000 {
				want := nodes[(i+j)%len(nodes)]
				if got := *m.Of(want, func() *v1.Node { return want }); got != want {
					t.Errorf("%p, want %p", got, want)
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
		m.Of(node, func() string { return "old" })
		return weak.Make(node)
	}()
	for end := time.Now().Add(time.Minute); collected.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("the node is kept")
		}
	}
	if got := *m.Of(named("n"), func() string { return "new" }); got != "new" || m.Len() != 1 {
		t.Errorf("a new node of that name: %s, %d are remembered", got, m.Len())
	}
}

package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func suits(string) bool { return true }

// Nodes that do not suit take no place, and are asked about only if they would.
func TestTopNodesThatSuit(t *testing.T) {
	x := New()
	for i := range 200 {
		node := fmt.Sprint("n", i)
		x.SetNode(node, amd64)
		if i < 100 {
			x.SetImages("test", node, []Image{image("ab", "quay.io/ab:1")})
		} else if i < 150 {
			x.SetImages("test", node, []Image{image("a", "quay.io/a:1")})
		}
	}
	number := func(node string) (n int) {
		_, err := fmt.Sscanf(node, "n%d", &n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for turn := range uint32(20) {
		asked := map[string]int{}
		got := measured(x, want("quay.io/ab:1")).TopNodes(32, turn, func(node string) bool {
			asked[node]++
			return number(node) >= 97
		})
		if len(got) != 32 {
			t.Fatalf("%d nodes: %v", len(got), got)
		}
		for i, node := range got {
			if n := number(node); n < 97 || n >= 150 || (i < 3) != (n < 100) {
				t.Errorf("%v: want the three that suit and have all, and others that have the base", got)
				break
			}
		}
		for node, times := range asked {
			if times != 1 || number(node) >= 150 {
				t.Errorf("asked %d times about %s", times, node)
			}
		}
	}
}

func TestTopNodes(t *testing.T) {
	x := newIndex("n0", "n1", "n2", "n3", "n4", "n5")
	for node, layers := range map[string]string{"n1": "abc", "n2": "a", "n4": "a", "n5": "a"} {
		x.SetImages("test", node, []Image{image(layers, "quay.io/"+layers+":1")})
	}
	// n0 has nothing but what comes with a pod: b and c.
	x.SetImages("test", "n3", []Image{image("bc", "quay.io/bc:1")})
	x.Reserve("pod", "n0", want("quay.io/bc:1"), joining, t0, t0.Add(time.Hour))

	wanted := want("quay.io/abc:1")
	turns := map[string]int{}
	for turn := range uint32(200) {
		all := measured(x, wanted).TopNodes(50, turn, suits)
		if len(all) != 6 || all[0] != "n1" {
			t.Fatalf("%v: want n1, then the others", all)
		}
		if two := all[1:3]; !slices.Contains(two, "n0") || !slices.Contains(two, "n3") {
			t.Fatalf("%v: n0 and n3 have b and c, and come before those that have a", all)
		}
		for n := range 7 {
			if got := measured(x, wanted).TopNodes(n, turn, suits); !slices.Equal(got, all[:min(n, len(all))]) {
				t.Fatalf("%d nodes of %v: %v", n, all, got)
			}
		}
		turns[all[1]]++
		turns[all[3]]++
	}
	for node, fair := range map[string]int{"n0": 100, "n3": 100, "n2": 67, "n4": 67, "n5": 67} {
		if got := turns[node]; got < fair/2 || got > 2*fair {
			t.Errorf("%s is the first of its equals %d times of 200, want about %d", node, got, fair)
		}
	}
	if got := measured(x, want("quay.io/unknown:1")).TopNodes(5, 0, suits); len(got) != 0 {
		t.Errorf("an unknown image: %v, want no node", got)
	}
	x.DeleteNode("n1")
	if got := slices.Sorted(slices.Values(measured(x, want("quay.io/bc:1")).TopNodes(9, 0, suits))); !slices.Equal(got, []string{"n0", "n3"}) {
		t.Errorf("without n1: %v", got)
	}
}

// TestTopNodesEqualsASort compares with a sort of all nodes.
func TestTopNodesEqualsASort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := New()
	for i := range 300 {
		node := fmt.Sprint("n", i)
		x.SetNode(node, amd64)
		var layers string
		for _, l := range "abcd" {
			if r.IntN(3) == 0 {
				layers += string(l)
			}
		}
		if layers != "" {
			x.SetImages("test", node, []Image{image(layers, "quay.io/"+layers+":1")})
		}
		if r.IntN(3) == 0 {
			x.Reserve(types.UID(node), node, want("quay.io/d:1"), joining, t0, t0.Add(time.Hour))
		}
	}
	x.SetImages("test", "n7", []Image{image("abcd", "quay.io/abcd:1")})
	m := measured(x, want("quay.io/abcd:1"))
	bytes := func(node string) int64 {
		b, _ := m.Node(node)
		return b.Present + b.Arriving
	}
	var all []string
	for node := range m.Nodes() {
		if bytes(node) > 0 {
			all = append(all, node)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return int(bytes(b) - bytes(a)) })
	for range 50 {
		n, turn := 1+r.IntN(320), r.Uint32()
		got := m.TopNodes(n, turn, suits)
		if len(got) != min(n, len(all)) {
			t.Fatalf("%d nodes, want %d", len(got), min(n, len(all)))
		}
		for i := range got {
			if bytes(got[i]) != bytes(all[i]) {
				t.Fatalf("%d in turn %d: place %d has %d bytes, want %d", n, turn, i, bytes(got[i]), bytes(all[i]))
			}
		}
		slices.Sort(got)
		if len(slices.Compact(got)) != min(n, len(all)) {
			t.Fatal("a node twice")
		}
	}
}

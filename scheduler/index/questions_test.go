package index

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/imageref"
)

func TestNodesWith(t *testing.T) {
	x := newIndex()
	var want []string
	for i := range 200 {
		name := fmt.Sprintf("n%03d", i)
		x.SetNode(name, amd64)
		switch {
		case i%3 == 0:
			x.SetImages("s", name, []Image{image("ab", "quay.io/a:1"), image("c", "quay.io/c:1")})
		case i%5 == 0:
			x.SetImages("s", name, []Image{image("ac", "quay.io/a:2")})
		default:
			continue
		}
		want = append(want, name)
	}
	got := x.NodesWith([]imageref.Canonical{"quay.io/a:1", "quay.io/a:2", "quay.io/c:1", "quay.io/unknown:1"})
	x.SetNode("another", amd64) // nothing is locked any longer
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := x.NodesWith([]imageref.Canonical{"quay.io/unknown:1"}); len(got) != 0 {
		t.Errorf("%q have an image that none has", got)
	}
}

func TestImage(t *testing.T) {
	x := newIndex("n1")
	x.SetImages("s", "n1", []Image{image("ab", "quay.io/a:1")})
	got, ok := x.Image(want("quay.io/a:1")[0], "n1")
	if !ok || len(got.Names) != 0 || got.SizeBytes != 1000 || len(got.Layers) != 2 || got.Layers[0].Size+got.Layers[1].Size != sum("ab") {
		t.Errorf("%+v, known %t", got, ok)
	}
	for name, sizeBytes := range map[string]int64{"quay.io/a:1": 1000, "quay.io/unknown:1": 0} { // from sources
		stated := want(name)[0]
		stated.Manifests = []Manifest{{Platform: amd64, Layers: image("acd").Layers}}
		if got, ok := x.Image(stated, "n1"); !ok || got.SizeBytes != sizeBytes || len(got.Layers) != 3 {
			t.Errorf("%s with a manifest: %+v, known %t", name, got, ok)
		}
	}
	for node, name := range map[string]string{"n1": "quay.io/unknown:1", "gone": "quay.io/a:1"} {
		if got, ok := x.Image(want(name)[0], node); ok {
			t.Errorf("%s on %s is %+v", name, node, got)
		}
	}
	x.SetNode("n2", amd64) // nothing is locked any longer
}

// Layers that have no digest, or one that could be taken for something else, are left out,
// wherever they are in a list that is in order.
func TestLayersWithoutDigest(t *testing.T) {
	for _, invalid := range []string{"", " ", "a b", "sha256:" + strings.Repeat("0", 64) + " b"} {
		one := image("ab", "quay.io/a:1")
		one.Layers = append(one.Layers, Layer{Digest: invalid, Size: 1 << 40})
		slices.SortFunc(one.Layers, func(a, b Layer) int { return strings.Compare(a.Digest, b.Digest) })
		x := newIndex("n1", "n2")
		x.SetImages("s", "n1", []Image{one})
		check(t, x, want("quay.io/a:1"), map[string]NodeBytes{
			"n1": {Total: sum("ab"), Present: sum("ab")}, "n2": {Total: sum("ab")},
		})
		x = newIndex("n1")
		x.SetImages("s", "n1", []Image{{Names: []string{"quay.io/a:1"}, SizeBytes: 1000, Layers: []Layer{{invalid, 1 << 40}}}})
		check(t, x, want("quay.io/a:1"), map[string]NodeBytes{"n1": {Total: 1000, Present: 1000}}) // by its name
	}
}

// A layer that an image lists twice is one blob.
func TestLayerTwice(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{image("abbcb", "quay.io/a:1")})
	check(t, x, want("quay.io/a:1"), map[string]NodeBytes{
		"n1": {Total: sum("abc"), Present: sum("abc")}, "n2": {Total: sum("abc")},
	})
}

// Both kinds of names count for the bound of names.
func TestNamesAreBounded(t *testing.T) {
	x := newIndex("n1")
	one := image("a")
	for i := range 2 * maxNames {
		one.Names = append(one.Names, fmt.Sprintf("quay.io/a:%d", i))
		one.Canonical = append(one.Canonical, imageref.Canonical(fmt.Sprintf("quay.io/b:%d", i)))
	}
	x.SetImages("s", "n1", []Image{one})
	if n := x.Stats().Names; n != maxNames {
		t.Errorf("%d names of an image, want %d", n, maxNames)
	}
	one.Names = one.Names[:maxNames/4]
	x.SetImages("s", "n1", []Image{one})
	if n := x.Stats().Names; n != maxNames {
		t.Errorf("%d names of an image, want %d", n, maxNames)
	}
}

func TestLists(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{image("a", "quay.io/a:1"), image("b", "quay.io/b:1"), image("c", "quay.io/c:1")})
	x.SetImages("another", "n2", []Image{image("b", "quay.io/b:1")})
	for _, test := range []struct {
		source, node string
		names        []imageref.Canonical
		want         bool
	}{
		{"s", "n1", []imageref.Canonical{"quay.io/b:1"}, true},
		{"s", "n1", []imageref.Canonical{"quay.io/unknown:1", "quay.io/c:1"}, true},
		{"s", "n1", []imageref.Canonical{"quay.io/unknown:1"}, false},
		{"s", "n1", nil, false},
		{"another", "n1", []imageref.Canonical{"quay.io/b:1"}, false},
		{"s", "n2", []imageref.Canonical{"quay.io/b:1"}, false},
		{"s", "gone", []imageref.Canonical{"quay.io/b:1"}, false},
	} {
		if got := x.Lists(test.source, test.node, test.names); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}

// How it is known what nodes have: by source, and whether that names layers.
func TestReports(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	withoutLayers := func(names ...string) Image { return Image{Names: names, SizeBytes: 1000} }
	x.SetImages("status", "n1", []Image{image("a", "quay.io/a:1"), withoutLayers("quay.io/b:1"), withoutLayers("quay.io/c:1")})
	x.SetImages("agent", "n1", []Image{image("a", "quay.io/a:1"), image("b", "quay.io/b:1")})
	x.SetImages("status", "n2", []Image{withoutLayers("quay.io/b:1")})
	for _, test := range []struct {
		node  string
		names []imageref.Canonical
		want  []Report
	}{
		{"n1", []imageref.Canonical{"quay.io/a:1"}, []Report{{"agent", true}, {"status", true}}},
		{"n1", []imageref.Canonical{"quay.io/b:1"}, []Report{{"agent", true}, {"status", false}}},
		{"n1", []imageref.Canonical{"quay.io/unknown:1", "quay.io/c:1"}, []Report{{"status", false}}},
		{"n1", []imageref.Canonical{"quay.io/b:1", "quay.io/c:1"}, []Report{{"agent", true}, {"status", false}}}, // once
		{"n2", []imageref.Canonical{"quay.io/a:1"}, nil},
		{"gone", []imageref.Canonical{"quay.io/a:1"}, nil},
	} {
		if got := x.Reports(test.node, test.names); !slices.Equal(got, test.want) {
			t.Errorf("%s on %s: %v, want %v", test.names, test.node, got, test.want)
		}
	}
	agent, status, name := Report{"agent", true}, Report{"status", true}, Report{"status", false}
	for node, want := range map[string]map[Report]int{
		"n1": {agent: 2, status: 1, name: 2}, "n2": {name: 1}, "n3": {}, "gone": {},
	} {
		if got := x.ImagesOf(node); !maps.Equal(got, want) {
			t.Errorf("%s has %v, want %v", node, got, want)
		}
	}
	if got, want := x.ImagesOfAll(), (map[Report]int{agent: 2, status: 1, name: 3}); !maps.Equal(got, want) {
		t.Errorf("all nodes have %v, want %v", got, want)
	}
	x.SetNode("another", amd64) // nothing is locked any longer
}

// An image that many nodes have is one report, and every node counts.
func TestImageOfManyNodes(t *testing.T) {
	const nodes = 300
	x := newIndex()
	for i := range nodes {
		x.SetNode(fmt.Sprint("n", i), amd64)
		x.SetImages("s", fmt.Sprint("n", i), []Image{image("ab", "quay.io/a:1")})
	}
	if n := len(x.names["quay.io/a:1"].reports); n != 1 {
		t.Errorf("%d reports of the same image", n)
	}
	for _, platform := range []Platform{amd64, arm64} { // the last node's
		x.SetNode("n299", platform)
		m := measured(x, want("quay.io/a:1"))
		for i := range nodes {
			if got, _ := m.Node(fmt.Sprint("n", i)); got != (NodeBytes{Total: sum("ab"), Present: sum("ab")}) {
				t.Errorf("n%d: %+v", i, got)
			}
		}
		all := m.TopNodes(2*nodes, 7, suits)
		if slices.Sort(all); len(slices.Compact(all)) != nodes || !m.Idle() || m.MeanTotal() != float64(sum("ab")) {
			t.Errorf("%d nodes have it, idle %t, mean %f", len(all), m.Idle(), m.MeanTotal())
		}
	}
}

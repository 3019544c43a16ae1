package index

import (
	"slices"
	"testing"
)

// inOrder returns a manifest with these layers, the base first.
func inOrder(layers string) []Manifest {
	sorted := slices.Sorted(slices.Values([]rune(layers)))
	sorted = slices.Compact(sorted)
	m := Manifest{Platform: amd64, Layers: image(string(sorted)).Layers}
	for _, l := range layers {
		m.Order = append(m.Order, uint16(slices.Index(sorted, l)))
	}
	return []Manifest{m}
}

// Two nodes hold the same images: one uses layers again by their digest, the other one only
// above the same layers. What they lack of another image differs.
func TestChains(t *testing.T) {
	for _, stored := range []string{"ab", "ba", "abc", "aba"} {
		x := newIndex("digest", "chain")
		x.SetChains("chain", true)
		x.SetImages("s", "digest", []Image{image(stored, "quay.io/held:1")})
		chain := image(stored, "quay.io/held:1")
		chain.Layers = Chain(chain.Layers)
		x.SetImages("s", "chain", []Image{chain})
		for _, layers := range []string{"ab", "ac", "da", "abd", "ba", "bac", "aab", "aba", "d"} {
			wanted := want("quay.io/wanted:1")
			wanted[0].Manifests = inOrder(layers)
			m := measured(x, wanted)
			// What a download brings, layer by layer.
			total, digests, chains := int64(0), int64(0), int64(0)
			for i, l := range layers {
				if slices.Contains([]rune(layers[:i]), l) {
					continue
				}
				total += size(l)
				if slices.Contains([]rune(stored), l) {
					digests += size(l)
				}
				if len(stored) > i && stored[:i+1] == layers[:i+1] {
					chains += size(l)
				}
			}
			for node, present := range map[string]int64{"digest": digests, "chain": chains} {
				if got, _ := m.Node(node); got.Total != total || got.Present != present {
					t.Errorf("%s has %s: %d of %d bytes of %s are there, want %d of %d", node, stored, got.Present, got.Total, layers, present, total)
				}
			}
		}
	}
}

// An image without layers has no order that would have to be known.
func TestChainOfNothing(t *testing.T) {
	if layers, ok := (&Manifest{}).Chain(); !ok || len(layers) > 0 {
		t.Errorf("an image without layers: %v, %t", layers, ok)
	}
}

// A node that is found to use layers otherwise is another node to measure; what is wanted of
// it without an order is known from nodes alone.
func TestSetChains(t *testing.T) {
	x := newIndex("n1", "n2")
	if x.SetChains("unknown", true); x.Chains("unknown") || x.Chains("n1") {
		t.Error("no node uses layers in chains")
	}
	if x.SetChains("n1", true); !x.Chains("n1") || len(x.groups) != 2 {
		t.Errorf("chains %t, groups %v", x.Chains("n1"), x.groups)
	}
	wanted := want("quay.io/wanted:1")
	wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: image("ab").Layers}}
	check(t, x, wanted, map[string]NodeBytes{"n1": {}, "n2": {Total: sum("ab")}})
	wanted[0].Manifests = []Manifest{{Platform: amd64}} // nothing to pull
	check(t, x, wanted, map[string]NodeBytes{"n1": {}, "n2": {}})
	if images := measured(x, wanted).Images; images[0] != ByLayers {
		t.Errorf("an image without layers is known by %s", images[0])
	}
	x.SetNode("n1", arm64)
	if x.SetChains("n1", false); len(x.groups) != 2 || x.nodes["n1"].group != (group{Platform: arm64}) {
		t.Errorf("groups %v", x.groups)
	}
	x.DeleteNode("n1")
	if x.SetNode("n1", amd64); len(x.groups) != 1 {
		t.Errorf("groups %v", x.groups)
	}
}

// Places that lead nowhere are passed over.
func TestOrderIsNotTrusted(t *testing.T) {
	m := Manifest{Layers: image("ab").Layers, Order: []uint16{1, 9, 0}}
	layers, ok := m.Chain()
	if want := Chain(image("ba").Layers); !ok || !slices.Equal(layers, want) {
		t.Errorf("%v, %t, want %v", layers, ok, want)
	}
}

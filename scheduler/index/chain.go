package index

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// group is what nodes have in common that need the same layers for an image, with the same keys.
type group struct {
	Platform
	// chains: see SetChains.
	chains bool
}

// Chain returns the layers of an image, given in the order of its manifest, the base first,
// with keys that stand for a layer and all below it, as the chain IDs of the OCI image
// specification do; sorted by key. The key of the first layer is its digest. A layer that
// comes twice is one blob, which is downloaded once: it has no bytes the second time.
func Chain(layers []Layer) []Layer {
	chained := make([]Layer, len(layers))
	seen := make(map[string]bool, len(layers))
	for i, key := range ChainKeys(layers) {
		l := layers[i]
		if seen[l.Digest] {
			l.Size = 0
		}
		seen[l.Digest] = true
		chained[i] = Layer{Digest: key, Size: l.Size}
	}
	slices.SortFunc(chained, func(a, b Layer) int { return strings.Compare(a.Digest, b.Digest) })
	return chained
}

// ChainKeys returns the keys that Chain gives to layers, in the order of the layers.
func ChainKeys(layers []Layer) []string {
	keys := make([]string, len(layers))
	for i, l := range layers {
		if i == 0 {
			keys[i] = l.Digest
			continue
		}
		sum := sha256.Sum256([]byte(keys[i-1] + " " + l.Digest))
		keys[i] = "sha256:" + hex.EncodeToString(sum[:])
	}
	return keys
}

// layersIn returns the layers with the keys that nodes of a group have for them; ok is false
// if the order would have to be known and is not.
func (m *Manifest) layersIn(of group) (layers []Layer, ok bool) {
	if !of.chains {
		return m.Layers, true
	}
	return m.Chain()
}

// Chain returns the layers as the function Chain does; ok is false if their order is not
// known.
func (m *Manifest) Chain() (layers []Layer, ok bool) {
	if m.Order == nil && len(m.Layers) > 0 {
		return nil, false
	}
	return Chain(m.Ordered()), true
}

// Ordered returns the layers as the manifest lists them, the base first; sorted by digest if
// the order is not known.
func (m *Manifest) Ordered() []Layer {
	if m.Order == nil {
		return m.Layers
	}
	ordered := make([]Layer, 0, len(m.Order))
	for _, i := range m.Order {
		if int(i) < len(m.Layers) {
			ordered = append(ordered, m.Layers[i])
		}
	}
	return ordered
}

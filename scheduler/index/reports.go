package index

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/layer-locality/layer-locality/imageref"
)

// Report is how a source reports an image of a node.
type Report struct {
	Source string
	// Layers means that the source reports its layers.
	Layers bool
}

// NodesWith returns the nodes for which any source reports an image under one of the names.
// The cost is in proportion to the names and these nodes.
func (x *Index) NodesWith(names []imageref.Canonical) (nodes []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := make(bitmap, words(len(x.slots)))
	for _, n := range names {
		known := x.names[n]
		if known == nil {
			continue
		}
		for _, r := range known.reports {
			for _, s := range r.nodes {
				found.set(s)
			}
		}
	}
	for i, word := range found {
		for ; word != 0; word &= word - 1 {
			nodes = append(nodes, x.slots[i*64+bits.TrailingZeros64(word)].name)
		}
	}
	return nodes
}

// Reports returns how sources report images under one of the names for a node, sorted by
// source.
func (x *Index) Reports(nodeName string, names []imageref.Canonical) (reports []Report) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := x.nodes[nodeName]
	if n == nil {
		return nil
	}
	for source, imageReports := range n.sources {
		for _, r := range imageReports {
			if slices.ContainsFunc(r.names, func(n *name) bool { return slices.Contains(names, n.canonical) }) {
				reports = append(reports, Report{source, !r.content.opaque})
			}
		}
	}
	slices.SortFunc(reports, func(a, b Report) int { return cmp.Compare(a.Source, b.Source) })
	return slices.Compact(reports)
}

// ImagesOf counts the images that a node has, by how they are known. An image that several
// sources report counts for each of them.
func (x *Index) ImagesOf(nodeName string) map[Report]int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	counts := map[Report]int{}
	if n := x.nodes[nodeName]; n != nil {
		n.count(counts)
	}
	return counts
}

// ImagesOfAll is ImagesOf for all nodes together: pairs of a node and an image.
func (x *Index) ImagesOfAll() map[Report]int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	counts := map[Report]int{}
	for _, n := range x.nodes {
		n.count(counts)
	}
	return counts
}

func (n *node) count(counts map[Report]int) {
	for source, reports := range n.sources {
		for _, r := range reports {
			counts[Report{source, !r.content.opaque}]++
		}
	}
}

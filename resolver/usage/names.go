package usage

import (
	"maps"
	"slices"
)

// names counts the distinct image names of workloads, by namespace, so that each namespace takes
// a bounded part of the memory. What only nodes hold counts elsewhere, in nodeImages.
type names struct {
	limit Limits
	counts
	uses map[nameUse]int
}

// nameUse is an image, by its key, as workloads of a namespace name it.
type nameUse struct{ namespace, key string }

// namesPerImage is how many names are followed for each image that may be known (--max-images): some
// names are those of no image, and a namespace at its limit displaces its oldest images by new ones.
const namesPerImage = 2

func newNames(images Limits) *names {
	return &names{limit: Limits{All: namesPerImage * images.All, Each: namesPerImage * images.Each}, counts: newCounts(), uses: map[nameUse]int{}}
}

// add counts the use of a name by a workload, and reports whether there was room for it.
func (n *names) add(namespace, key string) bool {
	use := nameUse{namespace, key}
	switch {
	case namespace == "":
		return true
	case n.uses[use] == 0:
		if !n.hasRoom(namespace) {
			return false
		}
		n.counts.add(namespace, 1)
	}
	n.uses[use]++
	return true
}

// has reports whether a workload of the namespace uses the name.
func (n *names) has(namespace, key string) bool { return n.uses[nameUse{namespace, key}] > 0 }

// hasRoom reports whether a namespace may have another name. If all together are at their limit,
// those may that have fewer than each could have at most: nobody is displaced, but all have no more
// than twice the limit.
func (n *names) hasRoom(namespace string) bool {
	each := n.each[namespace]
	if each >= n.limit.Each || n.all >= 2*n.limit.All {
		return false
	}
	return n.all < n.limit.All || each < level(slices.Sorted(maps.Values(n.each)), n.limit.All-1)
}

func (n *names) remove(namespace, key string) {
	use := nameUse{namespace, key}
	switch {
	case namespace == "":
		return
	case n.uses[use] > 1:
		n.uses[use]--
		return
	}
	delete(n.uses, use)
	if n.counts.add(namespace, -1); n.each[namespace] == 0 {
		delete(n.each, namespace)
	}
}

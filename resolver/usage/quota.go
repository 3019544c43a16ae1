package usage

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Limits bound how many references have objects. One with more layers than
// layersPerUnit counts for several.
type Limits struct {
	// All and Each: in the cluster, and of one namespace.
	All, Each int
}

// of is the limit of a namespace. Without a name is what only nodes hold, or what was used
// before this process: all of that together may take what others leave, and loses first.
func (l Limits) of(namespace string) int {
	if namespace == "" {
		return l.All
	}
	return l.Each
}

// layersPerUnit is how many layers an image has for which it counts once. More than almost
// all images have: so a tenant whose images have hundreds neither fills etcd, at a tenth of
// a KiB for each layer, nor what schedulers take over.
const layersPerUnit = 64

// Units is how many units of a quota a reference with that many layers takes.
func Units(layers int) int { return max(1, (layers+layersPerUnit-1)/layersPerUnit) }

const (
	maxUnresolved, maxUnresolvedEach = 1000, 200
	maxUnused, maxUnusedEach         = 5000, 500
)

// What is retained at most besides the images in use (--max-images): references that were never
// resolved, and resolved ones that nothing uses any longer.
var (
	MaxUnresolved = Limits{All: maxUnresolved, Each: maxUnresolvedEach}
	MaxUnused     = Limits{All: maxUnused, Each: maxUnusedEach}
)

// headroom is the part of a limit that is freed when it is reached, so that not every new
// object displaces one.
const headroom = 8

// remains is how much of a limit stays when it was reached.
func remains(limit int) int { return limit - limit/headroom - 1 }

// counts is a count of references: in all, and by namespace. Those of which no namespace is
// known count for a namespace without a name.
type counts struct {
	all  int
	each map[string]int
}

func newCounts() counts { return counts{each: map[string]int{}} }

func (c *counts) add(namespace string, units int) {
	c.all += units
	c.each[namespace] += units
}

// fewest returns the namespace with the fewest references; none if there are no namespaces.
func (c *counts) fewest(namespaces []string) string {
	if len(namespaces) == 0 {
		return ""
	}
	return slices.MinFunc(namespaces, func(a, b string) int { return cmp.Compare(c.each[a], c.each[b]) })
}

// Quota bounds references of one sort that have objects. One that several namespaces use counts for
// the one with the fewest. A namespace at its limit loses its own oldest, whatever others do; if all
// together are at theirs, the namespaces with the most lose.
type Quota struct {
	limit Limits

	mu sync.Mutex
	counts
	admitted counts // since Begin
}

// NewQuota returns a Quota of no references.
func NewQuota(limit Limits) *Quota {
	return &Quota{limit: limit, counts: newCounts(), admitted: newCounts()}
}

// HasRoom reports whether there is room for another reference; with spare, whether also nothing has to
// go for it later: a namespace that reaches its limit loses more than one.
func (q *Quota) HasRoom(namespaces []string, spare bool) bool {
	limit := q.limit
	if spare {
		limit = Limits{All: remains(limit.All), Each: remains(limit.Each)}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fits(q.fewest(namespaces), 1, limit)
}

// Admit counts a new reference, if there is room for it, and reports whether there is.
func (q *Quota) Admit(namespaces []string, units int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	namespace := q.fewest(namespaces)
	ok := q.fits(namespace, units, q.limit)
	if ok {
		q.add(namespace, units)
		q.admitted.add(namespace, units)
	}
	return ok
}

func (c *counts) fits(namespace string, units int, limit Limits) bool {
	return c.all+units <= limit.All && c.each[namespace]+units <= limit.of(namespace)
}

// Begin is called before the references are read that Recount gets.
func (q *Quota) Begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.admitted = newCounts()
}

// Held is a reference that has objects.
type Held struct {
	Reference string
	Units     int
	Tenant
	namespace string // it counts for
}

// Recount has those of the references that are held removed that are too many, of each namespace the oldest,
// those that are unused first. It counts the others, and what was admitted since Begin.
func (q *Quota) Recount(held []Held, remove func(reference string)) {
	left := newCounts()
	for i := range held {
		held[i].namespace = left.fewest(held[i].Namespaces)
		left.add(held[i].namespace, held[i].Units)
	}
	if keep := q.limit.keep(left.each); !maps.Equal(keep, left.each) {
		slices.SortFunc(held, func(a, b Held) int { return a.Since.Compare(b.Since) })
		for _, inUse := range []bool{false, true} {
			for _, h := range held {
				if h.InUse == inUse && left.each[h.namespace] > keep[h.namespace] {
					left.add(h.namespace, -h.Units)
					remove(h.Reference)
				}
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for namespace, units := range q.admitted.each {
		left.add(namespace, units)
	}
	q.counts = left
}

// keep returns how many units each namespace keeps: all of them below its limit, and some less than
// that at it. If all together have too many, those with the most keep so few that all fit.
func (l Limits) keep(each map[string]int) map[string]int {
	keep, all := map[string]int{}, 0
	for namespace, n := range each {
		if limit := l.of(namespace); n >= limit {
			n = remains(limit)
		}
		keep[namespace] = n
		all += n
	}
	if all >= l.All {
		most := level(slices.Sorted(maps.Values(keep)), l.All-l.All/headroom)
		for namespace, n := range keep {
			keep[namespace] = min(n, most)
		}
	}
	return keep
}

// level returns the largest number so that, if every count above it is cut to it, the sum
// is at most room. counts are sorted, and their sum is larger than room.
func level(counts []int, room int) int {
	for i, n := range counts {
		left := len(counts) - i
		if n*left > room {
			return room / left
		}
		room -= n
	}
	return room
}

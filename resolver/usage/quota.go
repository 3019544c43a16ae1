package usage

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
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

// What is retained at most besides the images in use (--max-images).
var (
	// MaxUnresolved are references that were never resolved.
	MaxUnresolved = Limits{All: maxUnresolved, Each: maxUnresolvedEach}
	// MaxUnused are resolved ones that nothing uses any longer.
	MaxUnused = Limits{All: maxUnused, Each: maxUnusedEach}
)

// headroom is the part of a limit that is freed when it is reached, so that not every new
// object displaces one.
const headroom = 8

// remains is how much of a limit stays when it was reached.
func remains(limit int) int { return limit - limit/headroom - 1 }

// Quota counts the references that have objects, for each namespace. A namespace at its
// limit loses its own oldest, whatever others do; if all together are at theirs, the
// namespace with the most loses.
type Quota struct {
	images Limits

	mu                   sync.Mutex
	resolved, unresolved counts
	// What was admitted since begin.
	newResolved, newUnresolved counts
}

// counts is a count of references: in all, and by namespace. Those of which no namespace is
// known count for a namespace without a name.
type counts struct {
	all  int
	each map[string]int
}

// NewQuota returns a Quota for images whose content is known.
func NewQuota(images Limits) *Quota {
	return &Quota{images: images, resolved: newCounts(), unresolved: newCounts(), newResolved: newCounts(), newUnresolved: newCounts()}
}

func newCounts() counts { return counts{each: map[string]int{}} }

// HasRoom reports whether any new reference whose content is known has room.
func (c *Quota) HasRoom(namespaces []string) bool { return c.hasRoomWithin(namespaces, c.images) }

// HasSpare reports whether there is room for another reference and nothing has to go for it
// later: a namespace that reaches its limit loses more than one.
func (c *Quota) HasSpare(namespaces []string) bool {
	return c.hasRoomWithin(namespaces, Limits{All: remains(c.images.All), Each: remains(c.images.Each)})
}

func (c *Quota) hasRoomWithin(namespaces []string, limit Limits) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.resolved.room(namespaces, limit, 1)
	return ok
}

// Admit counts a new reference whose content is known, if there is room for it. If several
// namespaces use it, it counts for the one with the fewest.
func (c *Quota) Admit(namespaces []string, units int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return admit(namespaces, c.images, units, &c.resolved, &c.newResolved)
}

// AdmitUnresolved is Admit for a reference that was not resolved.
func (c *Quota) AdmitUnresolved(namespaces []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return admit(namespaces, MaxUnresolved, 1, &c.unresolved, &c.newUnresolved)
}

// Begin begins to count the references anew: those whose content is known, those that were
// never resolved, and those that nothing uses.
func (c *Quota) Begin() (resolved, unresolved, unused *TenantUsage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newResolved, c.newUnresolved = newCounts(), newCounts()
	return newTenantUsage(c.images), newTenantUsage(MaxUnresolved), newTenantUsage(MaxUnused)
}

// Set replaces the counts by those since Begin, and what was admitted meanwhile.
func (c *Quota) Set(resolved, unresolved *TenantUsage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resolved.addAll(c.newResolved)
	unresolved.addAll(c.newUnresolved)
	c.resolved, c.unresolved = resolved.counts, unresolved.counts
}

// admit counts a reference in all, and in those that came lately, if all has room.
func admit(namespaces []string, limit Limits, units int, all, lately *counts) bool {
	namespace, ok := all.room(namespaces, limit, units)
	if ok {
		all.add(namespace, units)
		lately.add(namespace, units)
	}
	return ok
}

// room returns the namespace for which a reference counts, and whether there is room.
func (t *counts) room(namespaces []string, limit Limits, units int) (namespace string, ok bool) {
	namespace = t.fewest(namespaces)
	return namespace, t.all+units <= limit.All && t.each[namespace]+units <= limit.of(namespace)
}

func (t *counts) add(namespace string, units int) {
	t.all += units
	t.each[namespace] += units
}

func (t *counts) addAll(other counts) {
	for namespace, n := range other.each {
		t.add(namespace, n)
	}
}

// fewest returns the namespace with the fewest references; none if there are no namespaces.
func (t *counts) fewest(namespaces []string) string {
	if len(namespaces) == 0 {
		return ""
	}
	return slices.MinFunc(namespaces, func(a, b string) int { return cmp.Compare(t.each[a], t.each[b]) })
}

// counted is a reference that counts for a namespace.
type counted struct {
	reference, namespace string
	units                int
	inUse                bool
	since                time.Time
}

// TenantUsage has references of one sort, with whom they count for.
type TenantUsage struct {
	limit Limits
	counts
	list []counted
}

func newTenantUsage(limit Limits) *TenantUsage {
	return &TenantUsage{limit: limit, counts: newCounts()}
}

// Count counts a reference that takes so many units.
func (t *TenantUsage) Count(reference string, units int, of Tenant) {
	namespace := t.fewest(of.Namespaces)
	t.add(namespace, units)
	t.list = append(t.list, counted{reference, namespace, units, of.InUse, of.Since})
}

// Excess returns the references to remove, and no longer counts them: of a namespace at its
// limit its oldest, those that are unused first.
func (t *TenantUsage) Excess() (references []string) {
	retained := t.retained()
	if maps.Equal(retained, t.each) {
		return nil
	}
	slices.SortFunc(t.list, func(a, b counted) int {
		if a.inUse != b.inUse {
			if b.inUse {
				return -1
			}
			return 1
		}
		return a.since.Compare(b.since)
	})
	for _, c := range t.list {
		if t.each[c.namespace] > retained[c.namespace] {
			t.add(c.namespace, -c.units)
			references = append(references, c.reference)
		}
	}
	return references
}

// retained returns how many references each namespace keeps: all of them below its limit, and
// some less than that at it. If all together have too many, those with the most keep so few
// that all fit.
func (t *TenantUsage) retained() map[string]int {
	retained, sum := map[string]int{}, 0
	for namespace, n := range t.each {
		if limit := t.limit.of(namespace); n >= limit {
			n = remains(limit)
		}
		retained[namespace] = n
		sum += n
	}
	if sum < t.limit.All {
		return retained
	}
	most := level(slices.Sorted(maps.Values(retained)), t.limit.All-t.limit.All/headroom)
	for namespace, n := range retained {
		retained[namespace] = min(n, most)
	}
	return retained
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

package queue

import (
	"container/heap"
	"container/list"
	"time"
)

// item is a key in the queue of its registry.
type item struct {
	key string
	// namespace whose turn it waits for.
	namespace string
	level     Level
	// due is when it may be taken.
	due time.Time
	// at is its place among the items that are not due, -1 if it is not there. place is its
	// place among those of its namespace; nil if it is not there.
	at    int
	place *list.Element
	// running means that a worker has it. again is how it is to be added after that.
	running bool
	again   *item
}

// fairQueue has the items of one queue. Namespaces take turns: one that names thousands of
// images delays each other one by a single image, and those that come meanwhile by less; one whose
// images take many requests waits the longer for its next turn. It is not safe for concurrent use.
type fairQueue struct {
	items map[string]*item
	later later
	ready [levels]roundRobin
	taken int
}

// Level is how urgent work is.
type Level int

// Levels of work, the most urgent first.
const (
	// Resolving is for what is not known yet.
	Resolving Level = iota
	// Confirming is for what only has to be confirmed.
	Confirming
	// Spare is for what no workload names.
	Spare
	levels
)

// How often a less urgent level goes first although a more urgent one has work: every
// eighth time, and every 64th. So a flood of new images stops no tag from being
// confirmed.
var share = [levels]int{Confirming: 8, Spare: 64}

// add adds an item. One that is there already keeps the earlier time and the more urgent level. If it
// is due, it keeps its place, too, unless it has its turn sooner in the other namespace: a tenant who names
// others' images again and again delays none of them.
func (f *fairQueue) add(now time.Time, added *item) {
	if f.items == nil {
		f.items = map[string]*item{}
	}
	old := f.items[added.key]
	if old != nil && old.running {
		if old.again != nil {
			added.merge(old.again)
		}
		old.again = added
		return
	}
	if old != nil {
		if old.place != nil && old.level <= added.level && (added.namespace == old.namespace || !f.sooner(old, added.namespace)) {
			return
		}
		added.merge(old)
		f.unlink(old)
	}
	f.items[added.key] = added
	f.link(now, added)
}

// merge takes over what was asked for earlier.
func (i *item) merge(old *item) {
	if old.due.Before(i.due) {
		i.due = old.due
	}
	i.level = min(i.level, old.level)
}

func (f *fairQueue) link(now time.Time, i *item) {
	if i.at = -1; i.due.After(now) {
		heap.Push(&f.later, i)
		return
	}
	f.ready[i.level].add(i)
}

func (f *fairQueue) unlink(i *item) {
	if i.at >= 0 {
		heap.Remove(&f.later, i.at)
	}
	if i.place != nil {
		f.ready[i.level].remove(i)
	}
}

// remove drops an item that no worker has yet.
func (f *fairQueue) remove(key string) {
	if i := f.items[key]; i != nil && !i.running {
		f.unlink(i)
		delete(f.items, key)
	} else if i != nil {
		i.again = nil
	}
}

// take returns the next item, or nil if none is due.
func (f *fairQueue) take(now time.Time) *item {
	f.settle(now)
	level := Level(-1)
	for l := range levels {
		if f.ready[l].length == 0 {
			continue
		}
		if level < 0 || (f.taken+1)%share[l] == 0 {
			level = l
		}
	}
	if level < 0 {
		return nil
	}
	f.taken++
	i := f.ready[level].next()
	i.running = true
	return i
}

// done ends the work on an item, which took so many requests.
func (f *fairQueue) done(now time.Time, i *item, requests int) {
	delete(f.items, i.key)
	f.ready[i.level].charge(i.namespace, requests)
	if i.again != nil {
		f.add(now, i.again)
	}
}

// settle moves what has become due.
func (f *fairQueue) settle(now time.Time) {
	for len(f.later) > 0 && !f.later[0].due.After(now) {
		i := heap.Pop(&f.later).(*item)
		f.ready[i.level].add(i)
	}
}

// waiting returns how many items of a namespace are due.
func (f *fairQueue) waiting(namespace string) int {
	sum := 0
	for l := range f.ready {
		if of := f.ready[l].namespaces[namespace]; of != nil {
			sum += of.items.Len()
		}
	}
	return sum
}

// sooner reports whether an item that is due has fewer turns to wait for in another namespace, at its end.
func (f *fairQueue) sooner(i *item, namespace string) bool {
	turns := f.waiting(namespace)
	if of := f.ready[i.level].namespaces[namespace]; of != nil {
		turns += max(0, of.owed) / perTurn
	}
	for before := i.place.Prev(); before != nil; before = before.Prev() {
		if turns--; turns < 0 {
			return true
		}
	}
	return false
}

// next returns when something is due; false if nothing will be. What is due already
// counts as due at now.
func (f *fairQueue) next(now time.Time) (time.Time, bool) {
	for l := range f.ready {
		if f.ready[l].length > 0 {
			return now, true
		}
	}
	if len(f.later) == 0 {
		return time.Time{}, false
	}
	return f.later[0].due, true
}

// perTurn is how many requests a turn is worth: those of an image that everybody may pull, a
// token, an index and the manifests of two platforms.
const perTurn = 4

// freshTurns: one turn of so many goes to a tenant that was here before, also while new ones come.
const freshTurns = 16

// roundRobin has the items of one level that are due, by namespace. Each namespace gives one
// item, then it is the next one's turn (deficit round robin: Shreedhar and
// Varghese, SIGCOMM 1995). A namespace that comes anew has its first turn before those that have
// been waiting with more (as new flows in RFC 8290, section 4.2), and keeps its place until its next
// turn, so that it is not new again before that.
type roundRobin struct {
	namespaces   map[string]*tenantQueue
	fresh, order list.List // of *tenantQueue, the next first
	length       int
	turns        int
}

// tenantQueue has the items of one namespace.
type tenantQueue struct {
	namespace string
	items     list.List // of *item, the oldest first
	// owed are the requests that its items took beyond perTurn each. It lets a turn go by for each perTurn of them.
	owed int
	// place in fresh or in order. A namespace has one, however often its items come and go.
	place *list.Element
}

func (r *roundRobin) add(i *item) {
	t := r.namespaces[i.namespace]
	if t == nil {
		t = r.tenant(i.namespace, &r.fresh)
	}
	i.place = t.items.PushBack(i)
	r.length++
}

// tenant adds a queue for a namespace, which is the last one of the list.
func (r *roundRobin) tenant(namespace string, to *list.List) *tenantQueue {
	if r.namespaces == nil {
		r.namespaces = map[string]*tenantQueue{}
	}
	t := &tenantQueue{namespace: namespace}
	t.place = to.PushBack(t)
	r.namespaces[namespace] = t
	return t
}

// charge notes how many requests an item of a namespace took. That matters only while others wait.
func (r *roundRobin) charge(namespace string, requests int) {
	if r.length == 0 || requests <= perTurn {
		return
	}
	t := r.namespaces[namespace]
	if t == nil {
		t = r.tenant(namespace, &r.order)
	}
	t.owed += requests - perTurn
}

func (r *roundRobin) remove(i *item) {
	r.namespaces[i.namespace].items.Remove(i.place)
	i.place = nil
	if r.length--; r.length == 0 {
		*r = roundRobin{}
	}
}

// next returns the item whose turn it is; there is one.
func (r *roundRobin) next() *item {
	for {
		from := &r.order
		if r.fresh.Len() > 0 && (r.order.Len() == 0 || (r.turns+1)%freshTurns != 0) {
			from = &r.fresh
		}
		t := from.Remove(from.Front()).(*tenantQueue)
		if from == &r.order && t.items.Len() == 0 && t.owed <= 0 {
			delete(r.namespaces, t.namespace)
			continue
		}
		t.place = r.order.PushBack(t)
		switch {
		case t.owed >= perTurn, t.owed > 0 && t.items.Len() == 0:
			t.owed -= perTurn
			r.turns++ // it was its turn
		case t.items.Len() > 0:
			i := t.items.Front().Value.(*item)
			r.turns++
			r.remove(i)
			return i
		}
	}
}

// later is a heap of items by the time at which they are due.
type later []*item

func (l later) Len() int           { return len(l) }
func (l later) Less(a, b int) bool { return l[a].due.Before(l[b].due) }
func (l later) Swap(a, b int) {
	l[a], l[b] = l[b], l[a]
	l[a].at, l[b].at = a, b
}

// Push implements heap.Interface.
func (l *later) Push(x any) {
	i := x.(*item)
	i.at = len(*l)
	*l = append(*l, i)
}

// Pop implements heap.Interface.
func (l *later) Pop() any {
	last := (*l)[len(*l)-1]
	(*l)[len(*l)-1] = nil
	*l = (*l)[:len(*l)-1]
	last.at = -1
	return last
}

package index

import (
	"iter"
	"math/bits"
	"slices"
)

// nodeSet is a set of nodes: a sorted list while they are few, a bitmap when
// that takes less memory. Most layers are on few nodes. Those of popular images
// are on thousands, and every pod asks for them.
type nodeSet struct {
	list []Slot
	bits bitmap
	n    int
}

// bitmap has a bit for each slot.
type bitmap []uint64

func words(slots int) int { return (slots + 63) / 64 }

func (b bitmap) has(s Slot) bool { return int(s/64) < len(b) && b[s/64]&(1<<(s%64)) != 0 }
func (b bitmap) set(s Slot)      { b[s/64] |= 1 << (s % 64) }

func (b bitmap) word(i int) uint64 {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// A list takes 32 bits per entry, a bitmap one bit per node, as much as a list
// of one in 32 nodes. A bitmap is converted back only at half of that, so that a
// node that comes and goes does not cost a conversion each time.
const (
	toBits = 32
	toList = 64
)

// add adds a node; "of" is the number of slots in use.
func (s *nodeSet) add(e Slot, of int) {
	if s.bits == nil {
		list := insert(s.list, e)
		s.n, s.list = len(list), list
		if s.n*toBits > of+64 {
			s.bits = make(bitmap, words(of))
			s.list, s.n = nil, 0
			for _, e := range list {
				s.add(e, of)
			}
		}
		return
	}
	for len(s.bits) <= int(e/64) {
		s.bits = append(s.bits, 0)
	}
	if !s.bits.has(e) {
		s.bits.set(e)
		s.n++
	}
}

// remove removes a node; "of" is the number of slots in use.
func (s *nodeSet) remove(e Slot, of int) {
	if !s.has(e) {
		return
	}
	if s.bits == nil {
		s.list = remove(s.list, e)
		s.n = len(s.list)
		return
	}
	s.bits[e/64] &^= 1 << (e % 64)
	if s.n--; s.n*toList < of {
		s.list = slices.AppendSeq(make([]Slot, 0, s.n), s.all())
		s.bits = nil
	}
}

func (s *nodeSet) has(e Slot) bool {
	if s.bits == nil {
		return has(s.list, e)
	}
	return s.bits.has(e)
}

// all yields the nodes in order.
func (s *nodeSet) all() iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for _, e := range s.list {
			if !yield(e) {
				return
			}
		}
		for i, word := range s.bits {
			for ; word != 0; word &= word - 1 {
				if !yield(Slot(i*64 + bits.TrailingZeros64(word))) { //nolint:gosec // slots are small
					return
				}
			}
		}
	}
}

// with returns a set that also has the nodes of the lists; "of" is the number of
// slots.
func (s *nodeSet) with(lists [][]Slot, of int) *nodeSet {
	union := &nodeSet{bits: make(bitmap, words(of)), n: s.n}
	copy(union.bits, s.bits)
	for _, list := range append(lists, s.list) {
		for _, e := range list {
			union.bits.set(e)
		}
		union.n += len(list) // an upper bound; it only matters whether it is 0
	}
	return union
}

// sized is a set, and the bytes that each node in it has.
type sized struct {
	set  *nodeSet
	size int64
}

// addSizes adds the sizes of the sets that a node is in to sums, which is
// indexed by slot. If there is a mask, only nodes in it count. Layers of one
// image are mostly on the same nodes, so nodes that are in all bitmaps are
// visited once. The order of sets is lost.
func addSizes(sums []int64, sets []sized, mask bitmap) {
	dense := sets[:0]
	var all int64
	n := 0
	for _, s := range sets {
		if s.set.bits == nil {
			for _, e := range s.set.list {
				if mask == nil || mask.has(e) {
					sums[e] += s.size
				}
			}
			continue
		}
		dense = append(dense, s)
		all += s.size
		n = max(n, len(s.set.bits))
	}
	for i := range n {
		wanted := ^uint64(0)
		if mask != nil {
			wanted = mask.word(i)
		}
		common := wanted
		for _, s := range dense {
			common &= s.set.bits.word(i)
		}
		sumsOf := sums[i*64 : min(i*64+64, len(sums))]
		addTo(sumsOf, common, all)
		for _, s := range dense {
			addTo(sumsOf, s.set.bits.word(i)&wanted&^common, s.size)
		}
	}
}

func addTo(sums []int64, word uint64, size int64) {
	if word == ^uint64(0) {
		for i := range sums {
			sums[i] += size
		}
		return
	}
	for ; word != 0; word &= word - 1 {
		sums[bits.TrailingZeros64(word)] += size
	}
}

func insert(slots []Slot, s Slot) []Slot {
	if last := len(slots) - 1; last < 0 || slots[last] < s { // filling an empty index
		return append(slots, s)
	}
	if i, found := slices.BinarySearch(slots, s); !found {
		return slices.Insert(slots, i, s)
	}
	return slots
}

func remove(slots []Slot, s Slot) []Slot {
	if i, found := slices.BinarySearch(slots, s); found {
		return slices.Delete(slots, i, i+1)
	}
	return slots
}

func has(slots []Slot, s Slot) bool {
	_, found := slices.BinarySearch(slots, s)
	return found
}

package index

import (
	"iter"
	"math/bits"
	"slices"
)

// nodeSet is a set of nodes: a sorted list while they are few, a bitmap when
// that takes less memory. Most layers are on few nodes; those of popular images
// are on thousands, and are what every pod asks for.
type nodeSet struct {
	list []slot
	bits []uint64
	n    int
}

// A list takes 32 bits an entry, a bitmap one bit a node: it is as large as a
// list of one in 32 nodes. It is given up only at half of that, so that a node
// that comes and goes does not cost a conversion each time.
const (
	toBits = 32
	toList = 64
)

// add adds a node; of is the number of slots in use.
func (s *nodeSet) add(e slot, of int) {
	if s.bits == nil {
		list := insert(s.list, e)
		s.n, s.list = len(list), list
		if s.n*toBits > of+64 {
			s.bits = make([]uint64, (of+63)/64)
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
	if bit := uint64(1) << (e % 64); s.bits[e/64]&bit == 0 {
		s.bits[e/64] |= bit
		s.n++
	}
}

// remove removes a node; of is the number of slots in use.
func (s *nodeSet) remove(e slot, of int) {
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
		s.list = slices.AppendSeq(make([]slot, 0, s.n), s.all())
		s.bits = nil
	}
}

func (s *nodeSet) has(e slot) bool {
	if s.bits == nil {
		return has(s.list, e)
	}
	return int(e/64) < len(s.bits) && s.bits[e/64]&(1<<(e%64)) != 0
}

// all yields the nodes in order.
func (s *nodeSet) all() iter.Seq[slot] {
	return func(yield func(slot) bool) {
		for _, e := range s.list {
			if !yield(e) {
				return
			}
		}
		for i, word := range s.bits {
			for ; word != 0; word &= word - 1 {
				if !yield(slot(i*64 + bits.TrailingZeros64(word))) { //nolint:gosec // slots are small
					return
				}
			}
		}
	}
}

// sized is a set with the bytes that each node in it has.
type sized struct {
	set  *nodeSet
	size int64
}

// addSizes adds to sums, by slot, the sizes of the sets a node is in. Layers of
// one image are mostly on the same nodes: nodes that are in all bitmaps are
// visited once. The order of sets is lost.
func addSizes(sums []int64, sets []sized) {
	dense := sets[:0]
	var all int64
	words := 0
	for _, s := range sets {
		if s.set.bits == nil {
			for _, e := range s.set.list {
				sums[e] += s.size
			}
			continue
		}
		dense = append(dense, s)
		all += s.size
		words = max(words, len(s.set.bits))
	}
	for i := range words {
		common := ^uint64(0)
		for _, s := range dense {
			common &= s.word(i)
		}
		sumsOf := sums[i*64 : min(i*64+64, len(sums))]
		addTo(sumsOf, common, all)
		for _, s := range dense {
			addTo(sumsOf, s.word(i)&^common, s.size)
		}
	}
}

func (s *sized) word(i int) uint64 {
	if i < len(s.set.bits) {
		return s.set.bits[i]
	}
	return 0
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

func insert(slots []slot, s slot) []slot {
	if last := len(slots) - 1; last < 0 || slots[last] < s { // filling an empty index
		return append(slots, s)
	}
	if i, found := slices.BinarySearch(slots, s); !found {
		return slices.Insert(slots, i, s)
	}
	return slots
}

func remove(slots []slot, s slot) []slot {
	if i, found := slices.BinarySearch(slots, s); found {
		return slices.Delete(slots, i, i+1)
	}
	return slots
}

func has(slots []slot, s slot) bool {
	_, found := slices.BinarySearch(slots, s)
	return found
}

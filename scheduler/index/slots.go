package index

import (
	"hash/maphash"
	"iter"
)

// slotTable numbers nodes by their names. It never changes once it is handed out,
// so it is read without a lock.
//
// It is a hash table made for one purpose: every Score of every node starts with
// a look-up, and a Go map of 5,000 names takes three times as long.
type slotTable struct {
	// hashes are open-addressed; 0 is free. A seeded 64-bit hash stands for the
	// name until the last comparison.
	hashes []uint64
	slots  []slot
	// names by slot; empty where no node is.
	names []string
}

var slotSeed = maphash.MakeSeed()

func newSlotTable(nodes []*node, n int) *slotTable {
	size := 8
	for size < 2*n {
		size *= 2
	}
	s := &slotTable{hashes: make([]uint64, size), slots: make([]slot, size), names: make([]string, len(nodes))}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		i, h := s.start(n.name)
		for s.hashes[i] != 0 {
			i = (i + 1) % uint64(size)
		}
		s.hashes[i], s.slots[i], s.names[n.slot] = h, n.slot, n.name
	}
	return s
}

// start returns the hash of a name and where to look for it first.
func (s *slotTable) start(name string) (index, hash uint64) {
	h := maphash.String(slotSeed, name) | 1
	return (h >> 1) & uint64(len(s.hashes)-1), h
}

// find returns the slot of a node.
func (s *slotTable) find(name string) (slot, bool) {
	for i, h := s.start(name); s.hashes[i] != 0; i = (i + 1) & uint64(len(s.hashes)-1) {
		if s.hashes[i] == h {
			if found := s.slots[i]; s.names[found] == name {
				return found, true
			}
		}
	}
	return 0, false
}

// all yields the names of all nodes.
func (s *slotTable) all() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range s.names {
			if name != "" && !yield(name) {
				return
			}
		}
	}
}

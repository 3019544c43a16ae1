// Package intern lets equal strings share memory. Names and digests come in
// objects that are decoded one by one, each with a copy of its own.
package intern

import "sync"

// Strings gives equal strings the same memory. It remembers the strings of two
// generations, so that what nobody brings any more is forgotten. The zero value
// is ready, and safe for concurrent use.
type Strings struct {
	mu         sync.Mutex
	young, old map[string]string
}

// generation bounds the strings of a generation. A cluster has some 10,000 that
// come again and again; those that come once, such as the top layers of images,
// only pass through.
const generation = 1 << 16

// Intern returns a string equal to s that shares its memory with the ones
// returned before.
func (n *Strings) Intern(s string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known, ok := n.young[s]; ok {
		return known
	}
	if known, ok := n.old[s]; ok {
		s = known
	}
	if n.young == nil || len(n.young) >= generation {
		n.old, n.young = n.young, map[string]string{}
	}
	n.young[s] = s
	return s
}

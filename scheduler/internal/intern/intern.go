// Package intern lets equal strings share memory. Names and digests come in
// objects that are decoded one by one, each with its own copy.
package intern

import "sync"

// Strings gives equal strings the same memory. It remembers the strings of two
// generations and forgets those that no longer occur. The zero value is ready
// to use, and safe for concurrent use.
type Strings struct {
	mu         sync.Mutex
	young, old map[string]string
}

// generation bounds the strings of a generation. A cluster has some 10,000
// strings that recur; those that occur once, such as the top layers of images,
// are soon forgotten.
const generation = 1 << 16

// Intern returns a string equal to s that shares memory with those returned
// before.
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

// Package weak has tests that notice some changes of its code and not others.
package weak

import "sync"

var mu sync.Mutex

// Clamp returns n, but at most 10.
func Clamp(n int) int {
	mu.Lock()
	defer mu.Unlock()
	if n > 10 {
		n = 10
	}
	return n
}

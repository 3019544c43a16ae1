// Command euid replaces the nonewprivs image of Kubernetes' tests: its file
// is set-user-ID root, and it prints whether that had an effect.
package main

import (
	"fmt"
	"os"
)

func main() { fmt.Printf("Effective uid: %d\n", os.Geteuid()) }

// Package memlimit has Go keep to 90 % of the memory that its container may have, so that it collects
// before the kernel ends it. A program imports it; $GOMEMLIMIT counts in its place. It is no library,
// since kube-scheduler and layer-extender are made of the modules of Kubernetes alone.
package memlimit

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// A container sees its own control group there, of version 2 or 1.
var files = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

func init() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit(files))
	}
}

// limit returns 90 % of the limit in the first file that is there; without one, what Go takes for none.
func limit(files []string) int64 {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// Without a limit, version 2 has "max".
		if bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bytes > 0 {
			return bytes / 10 * 9
		}
		break
	}
	return math.MaxInt64
}

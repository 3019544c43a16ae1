package output

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Bytes writes a number of bytes as people read it, in powers of ten as registries and links
// count: 45.7 MB.
func Bytes(n float64) string {
	switch size := math.Abs(n); {
	case size >= 999.95e9:
		return fmt.Sprintf("%.1f TB", n/1e12)
	case size >= 999.95e6:
		return fmt.Sprintf("%.1f GB", n/1e9)
	case size >= 999.95e3:
		return fmt.Sprintf("%.1f MB", n/1e6)
	case size >= 1:
		return fmt.Sprintf("%.1f kB", n/1e3)
	}
	return "0"
}

// Age writes how long ago a moment is; a dash for none.
func Age(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(at)))
}

// Seconds writes a time in seconds.
func Seconds(s float64) string {
	if s >= 100 {
		return fmt.Sprintf("%.0f s", s)
	}
	return fmt.Sprintf("%.1f s", s)
}

// Count writes a number of things, of which the word is the singular: 1 image, 2 images.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

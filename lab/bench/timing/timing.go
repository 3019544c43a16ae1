// Package timing has clocks for benchmarks, and the median of what they measure.
package timing

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// Wall returns the time since the start of the program.
func Wall() time.Duration { return time.Since(started) }

// Thread returns the processor time of this thread, which must be locked. It does not include
// other programs on the machine or the garbage collector.
func Thread() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

// Micros returns a time in microseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Median returns the median of at least one value, which it sorts.
func Median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Percentile returns the smallest value that p percent of all values do not
// exceed, or zero if there are no values.
func Percentile[T cmp.Ordered](values []T, p int) T {
	if len(values) == 0 {
		return *new(T)
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

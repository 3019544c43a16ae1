// Package cputime measures processor time, for benchmarks on machines that do other work, too.
package cputime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Thread returns the processor time of this thread, which must be locked. It does not include
// other programs on the machine or the garbage collector.
func Thread() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

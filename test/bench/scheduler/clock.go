package main

import (
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// wallTime is the time since the start of the program.
func wallTime() time.Duration { return time.Since(started) }

// threadTime is the processor time of this thread, which must be locked: other
// programs on the machine do not count, and neither does the garbage collector.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the clock is there on every Linux
	}
	return time.Duration(t.Nano())
}

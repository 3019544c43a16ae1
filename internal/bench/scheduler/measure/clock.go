package main

import (
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// wallTime returns the time since the start of the program.
func wallTime() time.Duration { return time.Since(started) }

// threadTime returns the processor time of this thread, which must be locked.
// It does not include other programs on the machine or the garbage collector.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

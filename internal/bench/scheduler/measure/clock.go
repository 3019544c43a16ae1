package main

import "time"

var started = time.Now()

// wallTime returns the time since the start of the program.
func wallTime() time.Duration { return time.Since(started) }

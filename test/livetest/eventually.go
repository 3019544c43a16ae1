package livetest

import (
	"context"
	"testing"
	"time"
)

// Eventually tries check until it gives no error. After the time given, the
// test fails at once with the last error.
func Eventually(t testing.TB, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	begin := time.Now()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			t.Logf("%s: after %.1f s", what, time.Since(begin).Seconds())
			return
		}
		// The end of the time is not what kept it from succeeding.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, within, last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

package livetest

import (
	"context"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/poll"
)

// Eventually calls check until it returns no error. After the given time, the
// test fails at once with the last error.
func Eventually(t testing.TB, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	begin := time.Now()
	if err := poll.Until(t.Context(), 200*time.Millisecond, within, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: after %.1f s", what, time.Since(begin).Seconds())
}

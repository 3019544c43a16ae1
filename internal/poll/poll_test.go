package poll

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errNotReady = errors.New("node n1 is not Ready")

// never is a condition that does not hold. Like a client, it returns the error
// of ctx once ctx has ended.
func never(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errNotReady
}

func TestUntilTheConditionHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, calls := time.Now(), 0
		err := Until(t.Context(), time.Second, time.Minute, func(context.Context) error {
			if calls++; calls < 4 {
				return errNotReady
			}
			return nil
		})
		if err != nil || calls != 4 || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %d calls in %s, want none after 4 in 3s", err, calls, time.Since(begin))
		}
	})
}

func TestUntilTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := Until(t.Context(), time.Second, 2*time.Minute, never)
		if !errors.Is(err, errNotReady) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 2*time.Minute {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if err == nil || !strings.HasSuffix(err.Error(), " after 2m0s: node n1 is not Ready") {
			t.Errorf("error %q, want one with the time and what was missing", err)
		}
	})
}

// The error must have the reason why the condition did not hold, although a call
// that hangs until the timeout reports only the timeout.
func TestUntilACallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := Until(t.Context(), time.Second, time.Minute, func(ctx context.Context) error {
			if calls++; calls == 2 {
				<-ctx.Done()
			}
			return never(ctx)
		})
		if !errors.Is(err, errNotReady) || calls != 2 {
			t.Errorf("%v after %d calls, want the error of the first", err, calls)
		}
	})
}

func TestUntilTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(90*time.Second, cancel)
		err := Until(ctx, time.Second, time.Hour, never)
		if !errors.Is(err, errNotReady) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "after 1m30s") {
			t.Errorf("error %v, want that it was canceled, when, and what was missing", err)
		}
		// A context that has already ended still gives a reason.
		calls := 0
		err = Until(ctx, time.Second, time.Hour, func(ctx context.Context) error { calls++; return never(ctx) })
		if !errors.Is(err, context.Canceled) || calls != 1 {
			t.Errorf("%v after %d calls, want one", err, calls)
		}
	})
}

func TestUntilAPermanentError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := Until(t.Context(), time.Second, time.Minute, func(context.Context) error { return Permanent(errNotReady) })
		if !errors.Is(err, errNotReady) || err.Error() != errNotReady.Error() || time.Since(begin) != 0 {
			t.Errorf("%v after %s, want the error as it is, at once", err, time.Since(begin))
		}
	})
}

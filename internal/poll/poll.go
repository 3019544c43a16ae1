// Package poll waits for a condition. If the condition never holds, the error
// has the reason why it did not hold in the end.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Until calls condition at once and then at every interval, until it returns no
// error. It gives up after the limit, when ctx ends, or on a Permanent error.
// The error wraps the last error of condition: "context deadline exceeded after
// 2m0s: node n1 is not Ready". The context that condition gets ends with the
// limit.
func Until(ctx context.Context, every, limit time.Duration, condition func(context.Context) error) error {
	begin := time.Now()
	var last error
	ended := wait.PollUntilContextTimeout(ctx, every, limit, true, func(ctx context.Context) (bool, error) {
		err := condition(ctx)
		if errors.As(err, new(permanent)) {
			return false, err
		}
		// Keep the last error from before the timeout: the timeout is not the reason
		// why the condition did not hold.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		return err == nil, nil
	})
	if ended == nil || errors.As(ended, new(permanent)) {
		return ended
	}
	return fmt.Errorf("%w after %s: %w", ended, time.Since(begin).Round(100*time.Millisecond), last)
}

// Permanent marks an error of a condition that waiting cannot change.
func Permanent(err error) error { return permanent{err} }

type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

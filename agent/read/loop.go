package read

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/agent/handover"
)

// Times of a Loop.
const (
	// settle is for how long changes are collected: an image has several records.
	settle = 200 * time.Millisecond
	// again is when an image is looked at again that was just being added or removed.
	again = time.Second
	// resync is how often the runtime is read although nothing seems to have changed,
	// a quarter more or less.
	resync = time.Minute
	// readTimeout is for how long one reading may take.
	readTimeout = 30 * time.Second
	// firstRetry and lastRetry are the pauses after a failure.
	firstRetry, lastRetry = time.Second, 30 * time.Second
)

// Loop reads a runtime and hands over what it finds.
type Loop struct {
	Runtime Runtime
	Writer  *handover.Writer

	state handover.State
	said  map[string]bool
}

// Run reads until the context is done, or until it has to be started again.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.state.Errors, l.said = map[string]int64{}, map[string]bool{}
	changes, failures := make(chan struct{}, 1), make(chan error, 1)
	go l.watch(ctx, changes, failures)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var changed time.Time
	retry := firstRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failures:
			l.failed(ctx, "watch", err)
			continue
		case <-changes:
			if changed.IsZero() {
				changed = time.Now()
				timer.Reset(settle)
			}
			continue
		case <-timer.C:
		}
		next, err := l.read(ctx, changed)
		switch {
		case errors.Is(err, ErrGone):
			return err
		case err != nil && ctx.Err() == nil:
			l.failed(ctx, "read", err)
			next, retry = retry, min(2*retry, lastRetry)
		default:
			changed, retry = time.Time{}, firstRetry
		}
		if err := l.Writer.WriteState(&l.state); err != nil {
			l.failed(ctx, "handover", err)
		}
		timer.Reset(next)
	}
}

// watch watches the runtime again and again.
func (l *Loop) watch(ctx context.Context, changes chan<- struct{}, failures chan<- error) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		began := time.Now()
		err := l.Runtime.Watch(ctx, func() {
			select {
			case changes <- struct{}{}:
			default: // one is waiting already
			}
		})
		if time.Since(began) > lastRetry {
			retry = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case failures <- err:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// read reads once, and returns when to do it next.
func (l *Loop) read(ctx context.Context, changed time.Time) (next time.Duration, err error) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	result, err := l.Runtime.Read(limited)
	if err != nil {
		return 0, err
	}
	if changed.IsZero() {
		changed = began
	}
	if err := l.Writer.WriteReport(&handover.Report{Spec: result.Contents.Spec(), Changed: changed}); err != nil {
		return 0, err
	}
	if !maps.Equal(result.Skipped, l.state.Skipped) && len(result.Skipped) > 0 {
		klog.FromContext(ctx).Info("Of some images the layers are not known", "images", result.Skipped)
	}
	l.state.Read, l.state.Pulls, l.state.Skipped = began, result.Pulls, result.Skipped
	klog.FromContext(ctx).V(2).Info("Read", "images", len(result.Contents.Images), "took", time.Since(began))
	if result.Incomplete {
		return again, nil
	}
	return time.Duration(float64(resync) * (0.75 + rand.Float64()/2)), nil //nolint:gosec // no secret
}

// failed counts a failure, and logs it if another one was the last of its kind.
func (l *Loop) failed(ctx context.Context, what string, err error) {
	l.state.Errors[what]++
	if text := what + ": " + err.Error(); !l.said[text] {
		if len(l.said) > 100 {
			clear(l.said)
		}
		l.said[text] = true
		klog.FromContext(ctx).Error(err, "It will be tried again", "what", what, "runtime", l.Runtime.Name())
	}
}

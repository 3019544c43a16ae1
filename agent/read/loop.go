package read

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// Times of a Loop.
const (
	// settle is for how long changes are collected: an image has several records, and one pull
	// changes CRI-O's list several times. Nothing is written before a second is over anyway.
	settle = 700 * time.Millisecond
	// again is when an image is looked at again that was just being added or removed, or of
	// which something could not be read; twice as late each time in a row, up to resync.
	again = time.Second
	// resync is how often the runtime is read although nothing seems to have changed,
	// a quarter more or less.
	resync = time.Minute
	// unwatched is that while the runtime cannot be watched.
	unwatched = 10 * time.Second
	// readTimeout is for how long one reading may take.
	readTimeout = 30 * time.Second
	// stuck is when a reading counts as one that does not even notice that its time is over.
	stuck = 2 * time.Minute
	// firstRetry and lastRetry are the pauses after a failure.
	firstRetry, lastRetry = time.Second, 30 * time.Second
)

// Loop reads a runtime and hands over what it finds.
type Loop struct {
	Runtime Runtime
	Writer  *handover.Writer
	// MinLayerBytes is the size of layers from which on they are listed.
	MinLayerBytes int64

	state  handover.State
	logged map[string]bool
	// again is when to read again what is incomplete, resync when to read again what is not.
	again, resync time.Duration
}

// ErrStuck means that a reading does not end: a new process may succeed.
var ErrStuck = fmt.Errorf("reading the runtime has not ended after %v: start again", stuck)

// errHandover means that what was read could not be handed over.
var errHandover = errors.New("handing over")

// errEmpty means that another runtime, or another part of it, is read than that of the kubelet:
// this node would look empty.
var errEmpty = errors.New("not a single image is there, not even that of this agent: is it what the kubelet uses? See --runtime, --socket and --namespace, or --storage")

// Run reads until the context is done, or until it has to be started again.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.state.Errors, l.logged = map[string]int64{}, map[string]bool{}
	changes, failures := make(chan struct{}, 1), make(chan error, 1)
	go l.watch(ctx, changes, failures)
	timer, due := time.NewTimer(0), time.Now()
	defer timer.Stop()
	wait := func(d time.Duration) {
		timer.Reset(d)
		due = time.Now().Add(d)
	}
	// changed is when the first change was noticed that has not been read, followed when changes were last read.
	var changed, followed time.Time
	retry := firstRetry
	l.again, l.resync = again, resync
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failures:
			l.failed(ctx, handover.WatchFailed, err)
			if l.resync = unwatched; time.Until(due) > unwatched {
				wait(unwatched)
			}
			continue
		case <-changes:
			l.resync = resync
			first := changed.IsZero()
			if first {
				changed = time.Now()
			}
			soon := max(settle, time.Until(followed.Add(handover.Spacing)))
			if first || time.Until(due) > soon { // after failures, it may be due much later
				wait(soon)
			}
			continue
		case <-timer.C:
		}
		next, err := l.read(ctx, changed)
		switch {
		case errors.Is(err, ErrGone), errors.Is(err, ErrStuck):
			return err
		case err != nil && ctx.Err() == nil:
			what := handover.ReadFailed
			if errors.Is(err, errHandover) {
				what = handover.HandoverFailed
			}
			l.failed(ctx, what, err)
			next, retry = retry, min(2*retry, lastRetry)
		case changed.IsZero():
			retry = firstRetry
			debug.FreeOSMemory() // nothing else is going on
		default:
			changed, followed, retry = time.Time{}, time.Now(), firstRetry
		}
		if err := l.Writer.WriteState(&l.state); err != nil {
			l.failed(ctx, handover.HandoverFailed, err)
		}
		wait(next)
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
	result, err := l.readIn(limited)
	if err == nil && len(result.Contents.Images) == 0 {
		err = errEmpty
	}
	if err != nil {
		return 0, err
	}
	if changed.IsZero() {
		changed = began
	}
	if err := l.Writer.WriteReport(&handover.Report{Spec: result.Contents.Spec(l.MinLayerBytes, v1alpha1.MaxNodeListBytes), Changed: changed}); err != nil {
		return 0, fmt.Errorf("%w: %w", errHandover, err)
	}
	if !maps.Equal(result.Skipped, l.state.Skipped) && len(result.Skipped) > 0 {
		klog.FromContext(ctx).Info("The layers of some images are not known", "images", result.Skipped)
	}
	l.state.Read, l.state.Pulls, l.state.Skipped = began, result.Pulls, result.Skipped
	klog.FromContext(ctx).V(2).Info("Read", "images", len(result.Contents.Images), "took", time.Since(began))
	if next = l.again; result.Incomplete && next < l.resync {
		l.again = 2 * next
		return next, nil
	}
	if !result.Incomplete {
		l.again = again
	}
	return time.Duration(float64(l.resync) * (0.75 + rand.Float64()/2)), nil //nolint:gosec // no secret
}

// readIn reads within a time that holds although the runtime may not mind its context.
func (l *Loop) readIn(ctx context.Context) (*Result, error) {
	type answer struct {
		*Result
		error
	}
	answered := make(chan answer, 1)
	go func() {
		result, err := l.Runtime.Read(ctx)
		answered <- answer{result, err}
	}()
	select {
	case a := <-answered:
		return a.Result, a.error
	case <-time.After(stuck):
		return nil, ErrStuck
	}
}

// failed counts a failure, and logs it if another one was the last of its kind.
func (l *Loop) failed(ctx context.Context, what string, err error) {
	l.state.Errors[what]++
	if text := what + ": " + err.Error(); !l.logged[text] {
		if len(l.logged) > 100 {
			clear(l.logged)
		}
		l.logged[text] = true
		klog.FromContext(ctx).Error(err, "The reader failed; trying again", "at", what, "runtime", l.Runtime.Name())
	}
}

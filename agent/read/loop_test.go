package read

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
)

// runtime is a container runtime that can fail on demand.
type runtime struct {
	mu      sync.Mutex
	result  Result
	err     error
	reads   int
	watches int
	changed func()
	end     chan error
}

func (*runtime) Name() string { return "test" }

func (r *runtime) Read(ctx context.Context) (*Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	if _, limited := ctx.Deadline(); !limited {
		return nil, errors.New("a runtime that hangs would keep the reader for ever")
	}
	result := r.result
	return &result, r.err
}

func (r *runtime) Watch(ctx context.Context, changed func()) error {
	r.mu.Lock()
	r.watches++
	r.changed, r.end = changed, make(chan error)
	end := r.end
	r.mu.Unlock()
	changed()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-end:
		return err
	}
}

// set has the next reading find an image, or fail.
func (r *runtime) set(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result, r.err = Result{Contents: contents.Contents{Images: []contents.Image{{Names: []string{name}}}}}, err
}

func (r *runtime) count() (reads, watches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads, r.watches
}

func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		folder := t.TempDir()
		node, reader := &runtime{}, handover.NewReader(folder)
		node.set("a", nil)
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(folder)}).Run(ctx) }()
		later := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		expect := func(what string, images ...string) {
			t.Helper()
			report, err := reader.Report()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if report != nil {
				got = report.Spec.Images
			}
			if !reflect.DeepEqual(got, images) {
				t.Errorf("%s: %q, want %q", what, got, images)
			}
		}
		state := func() *handover.State {
			t.Helper()
			state, err := reader.State()
			if err != nil || state == nil {
				t.Fatal(state, err)
			}
			return state
		}
		later(time.Second)
		expect("at the start", "- a")
		later(handover.Spacing)

		// Many changes, as of one pull, are one reading.
		before, _ := node.count()
		node.set("b", nil)
		for range 50 {
			node.changed()
			later(settle / 60)
		}
		later(time.Second)
		if after, _ := node.count(); after-before != 1 {
			t.Errorf("%d readings for many changes", after-before)
		}
		expect("after changes", "- b")
		// Changes that nobody saw.
		node.set("c", nil)
		later(80 * time.Second)
		expect("after a while", "- c")

		// The runtime does not answer: what was found stays, and its age shows.
		read := state().Read
		node.set("d", errors.New("hung"))
		later(5 * time.Minute)
		expect("while it does not answer")
		if s := state(); s.Errors["read"] < 5 || s.Errors["read"] > 20 || !s.Read.After(read) && time.Since(s.Read) < 3*time.Minute {
			t.Errorf("%+v", s)
		}
		if n := strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "hung"); n != 1 {
			t.Errorf("logged %d times that it hangs", n)
		}
		node.set("e", nil)
		later(time.Minute)
		expect("when it answers again", "- e")
		if age := time.Since(state().Read); age > 2*time.Minute {
			t.Errorf("read %v ago", age)
		}

		// The watch ends: it begins again, and all is read.
		node.set("f", nil)
		node.end <- errors.New("restarted")
		later(5 * time.Second)
		expect("after the runtime was restarted", "- f")
		if _, watches := node.count(); watches != 2 {
			t.Errorf("%d watches", watches)
		}

		// An image on its way is read again soon.
		node.mu.Lock()
		node.result.Incomplete, node.result.Pulls = true, 3
		node.mu.Unlock()
		node.changed()
		later(500 * time.Millisecond)
		node.set("g", nil)
		later(1500 * time.Millisecond)
		expect("soon after", "- g")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A node that pulls one image after another is read no more often than what it holds can be written, and
// soon after the last of them.
func TestManyPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		folder := t.TempDir()
		node, reader := &runtime{}, handover.NewReader(folder)
		node.set("a", nil)
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(folder)}).Run(ctx) }()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		before, _ := node.count()
		for range 100 {
			node.changed()
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
		}
		if after, _ := node.count(); after-before < 5 || after-before > 8 {
			t.Errorf("%d readings in 30 s of pulls", after-before)
		}
		node.set("b", nil)
		node.changed()
		time.Sleep(handover.Spacing)
		synctest.Wait()
		if report, err := reader.Report(); err != nil || report == nil || !reflect.DeepEqual(report.Spec.Images, []string{"- b"}) {
			t.Errorf("%+v, %v", report, err)
		}
		// After a pause, the first one is read as soon as its changes are collected.
		time.Sleep(handover.Spacing)
		node.set("c", nil)
		node.changed()
		time.Sleep(settle + 10*time.Millisecond)
		synctest.Wait()
		if report, err := reader.Report(); err != nil || report == nil || !reflect.DeepEqual(report.Spec.Images, []string{"- c"}) {
			t.Errorf("%+v, %v", report, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// unwatchable is a runtime that cannot be watched until it is allowed.
type unwatchable struct {
	*runtime
	allowed atomic.Bool
}

func (u *unwatchable) Watch(ctx context.Context, changed func()) error {
	if !u.allowed.Load() {
		return errors.New("no instances left")
	}
	return u.runtime.Watch(ctx, changed)
}

// Without a watch, what could not be read whole is read as often as the rest.
func TestUnwatchedAndIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		node := &unwatchable{runtime: &runtime{}}
		node.set("a", nil)
		node.result.Incomplete = true
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(t.TempDir())}).Run(ctx) }()
		time.Sleep(2 * time.Second)
		for range 20 {
			before, _ := node.count()
			time.Sleep(unwatched*5/4 + time.Millisecond)
			synctest.Wait()
			if after, _ := node.count(); after == before {
				t.Errorf("nothing was read in %v, after %d readings", unwatched*5/4, before)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What cannot be watched is read more often, until it can.
func TestUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		node := &unwatchable{runtime: &runtime{}}
		node.set("a", nil)
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(t.TempDir())}).Run(ctx) }()
		readings := func() int {
			before, _ := node.count()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			after, _ := node.count()
			return after - before
		}
		if n := readings(); n < 48 || n > 80 {
			t.Errorf("%d readings in ten minutes without a watch, want one in 10 s", n)
		}
		if n := strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "no instances left"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		node.allowed.Store(true)
		time.Sleep(time.Minute)
		if n := readings(); n < 8 || n > 14 {
			t.Errorf("%d readings in ten minutes with a watch, want one in a minute", n)
		}
		// The watch ends, and fails from then on: what was to be read in a minute is read sooner.
		node.allowed.Store(false)
		before, _ := node.count()
		node.changed()
		time.Sleep(time.Second)
		node.end <- errors.New("limit")
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if after, _ := node.count(); after-before < 2 {
			t.Errorf("%d readings after a change and 15 s without a watch", after-before)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What never becomes complete is read again later and later, not every second.
func TestNeverComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		node := &runtime{}
		node.set("a", nil)
		node.result.Incomplete = true
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(t.TempDir())}).Run(ctx) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if reads, _ := node.count(); reads < 14 || reads > 25 {
			t.Errorf("%d readings in ten minutes", reads)
		}
		// Complete once, it is soon looked at again the next time.
		node.set("a", nil)
		node.changed()
		time.Sleep(settle + handover.Spacing)
		node.mu.Lock()
		node.result.Incomplete = true
		node.mu.Unlock()
		node.changed()
		time.Sleep(settle + 100*time.Millisecond)
		before, _ := node.count()
		time.Sleep(1500 * time.Millisecond)
		if after, _ := node.count(); after != before+1 {
			t.Errorf("%d readings in the second after a change", after-before)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The pause after failures is long; what happens then is read soon all the same.
func TestEventAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		folder := t.TempDir()
		node := &runtime{}
		node.set("a", errors.New("away"))
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(folder)}).Run(ctx) }()
		time.Sleep(5 * time.Minute)
		// The next one is due in half a minute.
		before, _ := node.count()
		for reads := before; reads == before; reads, _ = node.count() {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		node.set("b", nil)
		node.end <- errors.New("restarted")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if reads, watches := node.count(); reads != before+2 || watches != 2 {
			t.Errorf("%d readings and %d watches since the runtime is back", reads-before-1, watches)
		}
		if report, err := handover.NewReader(folder).Report(); err != nil || report == nil || !reflect.DeepEqual(report.Spec.Images, []string{"- b"}) {
			t.Errorf("%+v, %v", report, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// hung is a runtime that does not mind its context.
type hung struct{ *runtime }

func (h hung) Read(context.Context) (*Result, error) {
	time.Sleep(time.Hour)
	return &Result{}, nil
}

// A reading that never ends ends the process, so that the kubelet starts another one.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := (&Loop{Runtime: hung{&runtime{}}, Writer: handover.NewWriter(t.TempDir())}).Run(t.Context())
		if took := time.Since(began); !errors.Is(err, ErrStuck) || took > 3*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
	})
}

// A runtime without any image is not the kubelet's: nothing is handed over.
func TestEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		folder := t.TempDir()
		node, reader := &runtime{}, handover.NewReader(folder)
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(folder)}).Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		state, err := reader.State()
		if report, reportErr := reader.Report(); report != nil || err != nil || reportErr != nil || !state.Read.IsZero() || state.Errors["read"] == 0 {
			t.Errorf("%+v, %+v, %v, %v", report, state, err, reportErr)
		}
		if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); !strings.Contains(log, "--namespace") {
			t.Errorf("logged %q", log)
		}
		node.set("a", nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if report, err := reader.Report(); err != nil || report == nil || !reflect.DeepEqual(report.Spec.Images, []string{"- a"}) {
			t.Errorf("%+v, %v", report, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What cannot be handed over is no fault of the runtime.
func TestNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		folder := t.TempDir()
		if err := os.Mkdir(filepath.Join(folder, "report.json"), 0o755); err != nil {
			t.Fatal(err)
		}
		node := &runtime{}
		node.set("a", nil)
		done := make(chan error, 1)
		go func() { done <- (&Loop{Runtime: node, Writer: handover.NewWriter(folder)}).Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if state, err := handover.NewReader(folder).State(); err != nil || state.Errors["read"] != 0 || state.Errors["handover"] == 0 {
			t.Errorf("%+v, %v", state, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What a process cannot follow ends it.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &runtime{}
		node.set("a", ErrGone)
		if err := (&Loop{Runtime: node, Writer: handover.NewWriter(t.TempDir())}).Run(t.Context()); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		synctest.Wait()
	})
}

package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// testQueues are queues of keys that are references: the registry is the host.
type testQueues struct {
	*Queues
	// namespaces returns those that use a key; nil for none.
	namespaces func(key string) []string
}

func newTestQueues(workers int, work func(context.Context, *Queue, string)) *testQueues {
	nobody := func(string) bool { return false }
	return &testQueues{Queues: New(workers, nobody, func(ctx context.Context, queue *Queue, key string) int {
		work(ctx, queue, key)
		return 0
	})}
}

func (q *testQueues) add(key string, after time.Duration, level Level) {
	var namespaces []string
	if q.namespaces != nil {
		namespaces = q.namespaces(key)
	}
	q.Add(hostOf(key), key, namespaces, after, level)
}

func (q *testQueues) remove(key string) { q.Remove(hostOf(key), key) }

func hostOf(key string) string {
	host, _, _ := strings.Cut(key, "/")
	return host
}

// runQueues starts queues that end with the test.
func runQueues(t *testing.T, workers int, work func(context.Context, *Queue, string)) *testQueues {
	return runPausedQueues(t, workers, nil, work)
}

func runPausedQueues(t *testing.T, workers int, paused map[string]time.Time, work func(context.Context, *Queue, string)) *testQueues {
	q := newTestQueues(workers, work)
	q.start(t, paused)
	return q
}

func (q *testQueues) start(t *testing.T, paused map[string]time.Time) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.Run(ctx, paused)
	}()
	<-q.Started()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// A registry that is paused, or has all its workers busy, delays no other.
func TestQueuesAreIndependent(t *testing.T) {
	done, release := make(chan string), make(chan struct{})
	q := runQueues(t, 2, func(_ context.Context, queue *Queue, key string) {
		switch hostOf(key) {
		case "slow":
			<-release
		case "limited":
			queue.Failed(time.Hour)
		default:
			done <- key
		}
	})
	defer close(release)
	for i := range 10 {
		q.add(fmt.Sprintf("slow/x:%d", i), 0, Resolving)
		q.add(fmt.Sprintf("limited/x:%d", i), 0, Resolving)
	}
	q.add("good/x:1", 0, Resolving)
	if got := <-done; got != "good/x:1" {
		t.Errorf("done: %s", got)
	}
}

// If a registry asks to wait, no worker asks it again until then.
func TestQueuePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		begin := time.Now()
		q := runQueues(t, 1, func(_ context.Context, queue *Queue, _ string) {
			asked = append(asked, time.Since(begin))
			queue.Failed(time.Hour)
		})
		for i := range 10 {
			q.add(fmt.Sprintf("limited/x:%d", i), 0, Resolving)
		}
		time.Sleep(2*time.Hour + time.Minute)
		synctest.Wait()
		if want := []time.Duration{0, time.Hour, 2 * time.Hour}; !slices.Equal(asked, want) {
			t.Errorf("asked after %v, want %v", asked, want)
		}
	})
}

// If a registry asked an earlier process to wait, this process waits too.
func TestQueuePausedFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := map[string]time.Duration{}
		begin := time.Now()
		var mu sync.Mutex
		paused := map[string]time.Time{"limited": begin.Add(time.Hour)}
		q := runPausedQueues(t, 1, paused, func(_ context.Context, _ *Queue, key string) {
			mu.Lock()
			defer mu.Unlock()
			done[key] = time.Since(begin)
		})
		q.add("limited/x:1", 0, Resolving)
		q.add("good/x:1", 0, Resolving)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := map[string]time.Duration{"good/x:1": 0, "limited/x:1": time.Hour}; !maps.Equal(done, want) {
			t.Errorf("done after %v, want %v", done, want)
		}
	})
}

func TestQueueFailed(t *testing.T) {
	q := &Queue{}
	for i := range toleratedFailures - 1 {
		if pause := q.Failed(0); pause != 0 {
			t.Errorf("pause of %v after failure %d: it may be the image", pause, i+1)
		}
	}
	if pause := q.Failed(0); pause <= 0 {
		t.Error("no pause after several failures in a row")
	}
	if pause := q.Failed(time.Minute); pause < time.Minute {
		t.Errorf("pause of %v, the registry asks for a minute", pause)
	}
	for range 100 {
		q.resume = time.Time{}
		if pause := q.Failed(0); pause <= 0 || pause > maxPause*6/5 {
			t.Fatalf("pause of %v, more than %v", pause, maxPause)
		}
	}
	q.resume = time.Time{}
	q.Succeeded()
	if pause := q.Failed(0); pause != 0 {
		t.Errorf("pause of %v after a success", pause)
	}
}

// A request that was under way when the registry asked others to wait: its image waits as
// long, and the outage counts once.
func TestQueueFailedDuringPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &Queue{}
		q.Failed(time.Hour)
		time.Sleep(10 * time.Minute)
		for _, asked := range []time.Duration{0, time.Minute} {
			if got, want := q.Failed(asked), 50*time.Minute; got != want {
				t.Errorf("asked to wait %v: %v, want %v", asked, got, want)
			}
		}
		if got, want := q.Failed(2*time.Hour), 2*time.Hour; got != want {
			t.Errorf("asked to wait longer: %v, want %v", got, want)
		}
		if q.failures != 1 {
			t.Errorf("%d failures, want 1", q.failures)
		}
	})
}

// Unknown images go before images that only have to be confirmed.
func TestQueuePriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, order := make(chan struct{}), make(chan string, 10)
		q := runQueues(t, 1, func(_ context.Context, _ *Queue, key string) {
			if key == "reg/first:1" {
				<-release
			}
			order <- key
		})
		q.add("reg/first:1", 0, Resolving)
		for i := range 3 {
			q.add(fmt.Sprintf("reg/old:%d", i), 0, Confirming)
		}
		q.add("reg/new:1", 0, Resolving)
		synctest.Wait() // the queue handles additions in its own goroutine
		close(release)
		if first := <-order; first != "reg/first:1" {
			t.Fatalf("first %s", first)
		}
		// The queue had handed out at most one already.
		if a, b := <-order, <-order; a != "reg/new:1" && b != "reg/new:1" {
			t.Errorf("%s and %s before the image that is not known", a, b)
		}
	})
}

func TestQueuesAreBounded(t *testing.T) {
	var mu sync.Mutex
	done := map[string]bool{}
	all := make(chan struct{})
	const registries = maxQueues + 50
	q := runQueues(t, 1, func(_ context.Context, _ *Queue, key string) {
		mu.Lock()
		defer mu.Unlock()
		if done[key] = true; len(done) == registries {
			close(all)
		}
	})
	for i := range registries {
		q.add(fmt.Sprintf("reg-%d/x:1", i), 0, Resolving)
	}
	<-all
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.byName); n > maxQueues+1 {
		t.Errorf("%d queues", n)
	}
}

// A registry keeps its queue as long as it has to be left alone, and then makes room for
// another.
func TestQueuesOfPausedRegistriesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worked := make(chan string, 2*maxQueues)
		q := runQueues(t, 1, func(_ context.Context, queue *Queue, key string) {
			if queue.name != sharedQueue {
				queue.Failed(time.Minute)
			}
			worked <- queue.name
		})
		for i := range maxQueues {
			q.add(fmt.Sprintf("reg-%d/x:1", i), 0, Resolving)
		}
		synctest.Wait()
		for range maxQueues {
			<-worked
		}
		for _, want := range []string{sharedQueue, "late"} {
			q.add("late/x:1", 0, Resolving)
			if got := <-worked; got != want {
				t.Errorf("worked on in queue %s, want %s", got, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestBackoff(t *testing.T) {
	for _, of := range []struct{ least, most time.Duration }{
		{time.Second, time.Minute}, {minPause, maxPause}, {time.Minute, 10 * time.Minute},
	} {
		want := of.least
		for failures := range 100 {
			d := Backoff(failures, of.least, of.most)
			if d < want*8/10 || d > want*12/10 {
				t.Errorf("%v after %d failures, want %v, a fifth more or less", d, failures, want)
			}
			want = min(of.most, 2*want)
		}
	}
}

// The queues stop at once, no matter how much is left to do: the next leader
// waits.
func TestQueuesEndWithItemsLeft(t *testing.T) {
	for range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		var q *testQueues
		q = newTestQueues(16, func(_ context.Context, _ *Queue, key string) { q.add(key, 0, Confirming) })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			q.Run(ctx, nil)
		}()
		<-q.Started()
		for i := range 2000 {
			q.add(fmt.Sprintf("reg%d/x:%d", i%2, i), 0, Confirming)
		}
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("workers wait for work that does not come")
		}
	}
}

// The next leader waits until the last image is worked on, and not longer.
func TestQueuesRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := make(chan struct{})
		q := newTestQueues(1, func(context.Context, *Queue, string) { <-work })
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		go func() {
			q.Run(ctx, nil)
			ended = true
		}()
		<-q.Started()
		q.add("reg/x:1", 0, Resolving)
		q.add("reg/x:2", time.Hour, Resolving)
		for i, step := range []func(){func() {}, cancel, func() { close(work) }} {
			step()
			synctest.Wait()
			if want := i == 2; ended != want {
				t.Errorf("step %d: ended is %v", i, ended)
			}
		}
	})
}

// A registry is forgotten with the last of its images, however long that would have waited.
func TestQueueOfNothing(t *testing.T) {
	q := runQueues(t, 1, func(context.Context, *Queue, string) {})
	q.add("reg/x:1", time.Hour, Resolving)
	q.add("reg/x:2", time.Hour, Resolving)
	queue := q.byName["reg"]
	for i, key := range []string{"reg/x:1", "reg/x:2"} {
		q.remove(key)
		if want := 1 - i; len(q.byName) != want {
			t.Errorf("%s is gone: %d queues, want %d", key, len(q.byName), want)
		}
	}
	if queue.timer.Stop() {
		t.Error("the timer keeps the queue in memory")
	}
}

// After a pause all workers go on, not only the first.
func TestAllWorkersGoOnAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 4
		var begun atomic.Int32
		release := make(chan struct{})
		q := runPausedQueues(t, workers, map[string]time.Time{"reg": time.Now().Add(time.Minute)}, func(context.Context, *Queue, string) {
			begun.Add(1)
			<-release
		})
		for i := range 2 * workers {
			q.add(fmt.Sprintf("reg/x:%d", i), 0, Resolving)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if n := begun.Load(); n != workers {
			t.Errorf("%d images are worked on, want %d", n, workers)
		}
		close(release)
	})
}

// A queue waits as long as the longest pause asks for, and no pause ends another one.
func TestPauseIsNeverShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &Queue{}
		for _, step := range []struct{ pause, want time.Duration }{
			{0, 0}, {time.Minute, time.Minute}, {time.Second, time.Minute}, {0, time.Minute}, {time.Hour, time.Hour},
		} {
			q.Pause(step.pause)
			if got := max(0, time.Until(q.resume)); got != step.want {
				t.Errorf("after a pause of %v: %v left, want %v", step.pause, got, step.want)
			}
		}
	})
}

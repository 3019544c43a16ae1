package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// runLanes starts lanes that end with the test.
func runLanes(t *testing.T, workers int, work func(context.Context, *lane, string)) *lanes {
	l := newLanes(workers, work)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(ctx)
	}()
	<-l.started
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l
}

func one(reference string) image { return newImage([]string{reference}) }

// A registry that is left alone, or that has all its workers busy, delays no
// other.
func TestLanesAreIndependent(t *testing.T) {
	done, release := make(chan string), make(chan struct{})
	l := runLanes(t, 2, func(_ context.Context, lane *lane, key string) {
		switch imageOf(key).registry() {
		case "slow":
			<-release
		case "limited":
			lane.failed(time.Hour)
		default:
			done <- key
		}
	})
	defer close(release)
	for i := range 10 {
		l.add(one(fmt.Sprintf("slow/x:%d", i)), 0, resolving)
		l.add(one(fmt.Sprintf("limited/x:%d", i)), 0, resolving)
	}
	l.add(one("good/x:1"), 0, resolving)
	if got := <-done; got != "good/x:1" {
		t.Errorf("done: %s", got)
	}
}

// A registry that asks to be left alone is asked no more by any worker.
func TestLanePause(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	failed := make(chan struct{}, 100)
	l := runLanes(t, 1, func(_ context.Context, lane *lane, _ string) {
		mu.Lock()
		asked++
		mu.Unlock()
		lane.failed(time.Hour)
		failed <- struct{}{}
	})
	for i := range 10 {
		l.add(one(fmt.Sprintf("limited/x:%d", i)), 0, resolving)
	}
	<-failed
	l.add(one("limited/y:1"), 0, resolving)
	time.Sleep(50 * time.Millisecond) // enough for a worker that does not wait
	mu.Lock()
	defer mu.Unlock()
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestLaneFailed(t *testing.T) {
	l := &lane{}
	for i := range toleratedFailures - 1 {
		if pause := l.failed(0); pause != 0 {
			t.Errorf("pause of %v after failure %d: it may be the image", pause, i+1)
		}
	}
	if pause := l.failed(0); pause <= 0 {
		t.Error("no pause after several failures in a row")
	}
	if pause := l.failed(time.Minute); pause < time.Minute {
		t.Errorf("pause of %v, the registry asks for a minute", pause)
	}
	for range 100 {
		l.resume = time.Time{}
		if pause := l.failed(0); pause <= 0 || pause > maxPause*6/5 {
			t.Fatalf("pause of %v, more than %v", pause, maxPause)
		}
	}
	l.resume = time.Time{}
	l.succeeded()
	if pause := l.failed(0); pause != 0 {
		t.Errorf("pause of %v after a success", pause)
	}
}

// What is not known goes before what is only confirmed.
func TestLanePriority(t *testing.T) {
	release, order := make(chan struct{}), make(chan string, 10)
	l := runLanes(t, 1, func(_ context.Context, _ *lane, key string) {
		if key == "reg/first:1" {
			<-release
		}
		order <- key
	})
	l.add(one("reg/first:1"), 0, resolving)
	for i := range 3 {
		l.add(one(fmt.Sprintf("reg/old:%d", i)), 0, confirming)
	}
	l.add(one("reg/new:1"), 0, resolving)
	time.Sleep(50 * time.Millisecond) // the queue takes additions in a goroutine of its own
	close(release)
	if first := <-order; first != "reg/first:1" {
		t.Fatalf("first %s", first)
	}
	// The queue had handed out at most one already.
	if a, b := <-order, <-order; a != "reg/new:1" && b != "reg/new:1" {
		t.Errorf("%s and %s before the image that is not known", a, b)
	}
}

func TestLanesAreBounded(t *testing.T) {
	var mu sync.Mutex
	done := map[string]bool{}
	all := make(chan struct{})
	const registries = maxLanes + 50
	l := runLanes(t, 1, func(_ context.Context, _ *lane, key string) {
		mu.Lock()
		defer mu.Unlock()
		if done[key] = true; len(done) == registries {
			close(all)
		}
	})
	for i := range registries {
		l.add(one(fmt.Sprintf("reg-%d/x:1", i)), 0, resolving)
	}
	<-all
	if n := len(l.byName); n > maxLanes+1 {
		t.Errorf("%d lanes", n)
	}
}

func TestBackoff(t *testing.T) {
	for failures := range 100 {
		d := backoff(failures, time.Second, time.Minute)
		if d < 800*time.Millisecond || d > 72*time.Second {
			t.Errorf("%v after %d failures", d, failures)
		}
	}
	if d := backoff(100, time.Second, time.Minute); d < 48*time.Second {
		t.Errorf("%v after 100 failures", d)
	}
}

// However much is left to do: the next leader waits.
func TestLanesEndWithFullQueues(t *testing.T) {
	for range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		var l *lanes
		l = newLanes(16, func(_ context.Context, _ *lane, key string) { l.add(imageOf(key), 0, confirming) })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.run(ctx)
		}()
		<-l.started
		for i := range 2000 {
			l.add(one(fmt.Sprintf("reg%d/x:%d", i%2, i)), 0, confirming)
		}
		cancel()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("workers wait for work that does not come")
		}
	}
}

package layerlocality

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

// A resolver that does not answer, or too late, delays three pods and no more.
func TestWaitBudget(t *testing.T) {
	const wait, never = time.Second, 24 * time.Hour
	for name, test := range map[string]struct {
		// answer is how long the resolver takes at a time since the start.
		answer func(at time.Duration) time.Duration
		// apart is the time between two pods, each of a new image.
		apart time.Duration
		// gated is how many of 400 pods are gated for 10 ms or more, at most.
		gated int
	}{
		"absent":          {func(time.Duration) time.Duration { return never }, 100 * time.Millisecond, 4},
		"absent, a wave":  {func(time.Duration) time.Duration { return never }, 0, 3},
		"dead, slow pods": {func(time.Duration) time.Duration { return never }, 3 * time.Second, 10},
		"backlog":         {func(time.Duration) time.Duration { return time.Minute }, 100 * time.Millisecond, 4},
		"dies": {func(at time.Duration) time.Duration {
			if at < 5*time.Second {
				return 200 * time.Millisecond
			}
			return never
		}, 100 * time.Millisecond, 50 + 14},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				delays := play(t, wait, 400, test.apart, test.answer)
				gated := 0
				for _, d := range delays {
					if d > wait+2*tick {
						t.Errorf("a pod was gated for %s", d)
					}
					if d >= 10*time.Millisecond {
						gated++
					}
				}
				if gated == 0 || gated > test.gated {
					t.Errorf("%d of 400 pods were gated, want 1 to %d", gated, test.gated)
				}
				slices.Sort(delays)
				if p50 := delays[len(delays)/2]; p50 > 10*time.Millisecond {
					t.Errorf("p50 of the delay %s", p50)
				}
			})
		})
	}
}

// play has pods of one image each come one after another, and returns how long each was
// gated. answer is how long the resolver takes for an image that it first sees then.
func play(t *testing.T, wait time.Duration, pods int, apart time.Duration, answer func(at time.Duration) time.Duration) (delays []time.Duration) {
	t.Helper()
	unknown := &sync.Map{}
	gate, queue, store := newGate(t.Context(), wait, unknown)
	gate.budget.atOnce = leastAtOnce
	created := map[types.UID]time.Duration{}
	for i := range pods {
		image := fmt.Sprint("image", i)
		unknown.Store(image, true)
		at := time.Since(queue.start)
		if after := answer(at); after < time.Hour {
			go func() {
				time.Sleep(after)
				unknown.Delete(image)
			}()
		}
		p := pod(image, image)
		if err := store.Add(p); err != nil {
			t.Fatal(err)
		}
		created[p.UID] = at
		queue.add(p)
		time.Sleep(apart)
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	passed, _, _, running := queue.state()
	if len(passed) != pods || running {
		t.Errorf("%d of %d pods passed, running %t", len(passed), pods, running)
	}
	for uid, at := range passed {
		delays = append(delays, at-created[uid])
	}
	return delays
}

// A resolver that is restarted is waited for again as soon as it answers in time, also
// though nobody waits then.
func TestWaitBudgetComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := func(at time.Duration) bool { return at > 10*time.Second && at < 20*time.Second }
		unknown := &sync.Map{}
		gate, queue, store := newGate(t.Context(), time.Second, unknown)
		gated := map[time.Duration]bool{}
		for i := range 300 {
			image := fmt.Sprint("image", i)
			unknown.Store(image, true)
			at := time.Since(queue.start)
			if !down(at) {
				go func() {
					time.Sleep(250 * time.Millisecond)
					unknown.Delete(image)
				}()
			}
			p := pod(image, image)
			if err := store.Add(p); err != nil {
				t.Fatal(err)
			}
			gated[at.Truncate(time.Second)] = !queue.add(p).IsSuccess()
			time.Sleep(100 * time.Millisecond)
		}
		for at, want := range map[time.Duration]bool{5: true, 10: true, 15: false, 19: false, 22: true, 29: true} {
			if gated[at*time.Second] != want {
				t.Errorf("after %d s pods are gated: %t, want %t", at, !want, want)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		gate.mu.Lock()
		defer gate.mu.Unlock()
		if gate.budget.late != 0 || gate.budget.pause != leastPause {
			t.Errorf("%d late, pause %s", gate.budget.late, gate.budget.pause)
		}
	})
}

// Pauses get longer, up to a quarter of an hour or so.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, queue, store := newGate(t.Context(), time.Second, &sync.Map{})
		var tries []time.Duration
		unknown := queue.gate.unknown
		queue.gate.unknown = func(p *v1.Pod) []string { return append(unknown(p), p.Name) }
		queue.gate.awaits = func(string) bool { return true }
		for i := range 8000 {
			p := pod(fmt.Sprint("p", i), "x")
			if err := store.Add(p); err != nil {
				t.Fatal(err)
			}
			if !queue.add(p).IsSuccess() {
				tries = append(tries, time.Since(queue.start))
			}
			time.Sleep(time.Second)
			if err := store.Delete(p); err != nil {
				t.Fatal(err)
			}
		}
		var pauses []time.Duration
		for i := 1; i < len(tries); i++ {
			if pause := tries[i] - tries[i-1]; pause > 10*time.Second {
				pauses = append(pauses, pause.Round(10*time.Second))
			}
		}
		want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 16 * time.Minute}
		if len(pauses) < len(want) || !slices.Equal(pauses[:len(want)], want) {
			t.Errorf("pauses %s, want %s", pauses, want)
		}
		queue.gate.mu.Lock()
		defer queue.gate.mu.Unlock()
		if n := len(queue.gate.budget.images); n > 700 {
			t.Errorf("%d images are remembered, those of 10 minutes are enough", n)
		}
	})
}

// The pods of a gang wait together, and an image is waited for once.
func TestWaitBudgetOfGangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unknown := &sync.Map{}
		_, queue, store := newGate(t.Context(), time.Second, unknown)
		for i := range 8 {
			image := fmt.Sprint("image", i)
			unknown.Store(image, true)
			p := pod(fmt.Sprint("member", i), image, "shared")
			joinGang(p)
			if err := store.Add(p); err != nil {
				t.Fatal(err)
			}
			queue.add(p)
			time.Sleep(400 * time.Millisecond) // after the third, the first has waited for a second
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		passed, _, _, _ := queue.state()
		for uid, at := range passed {
			if uid < "member3" && at > time.Second+2*tick {
				t.Errorf("%s passed after %s", uid, at)
			}
		}
		// Pods that come later are not gated for their own images.
		for i := 3; i < 8; i++ {
			came := time.Duration(i) * 400 * time.Millisecond
			if at := passed[types.UID(fmt.Sprint("member", i))]; at-came > 10*time.Millisecond {
				t.Errorf("member %d waited for %s", i, at-came)
			}
		}
	})
}

// Images that nobody can count are not waited for.
func TestWaitBudgetIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unknown := &sync.Map{}
		gate, _, _ := newGate(t.Context(), time.Second, unknown)
		for i := range 2 * maxAwaited {
			gate.budget.until([]string{fmt.Sprint(i)}, fmt.Sprint("group", i))
		}
		if n, groups := len(gate.budget.images), len(gate.budget.groups); n > maxAwaited || groups > maxAwaited {
			t.Errorf("%d images and %d groups are remembered", n, groups)
		}
		if until := gate.budget.until([]string{"one more"}, ""); until.After(time.Now()) {
			t.Error("gated for one more")
		}
	})
}

// An image about which something is known now takes no room among those that are awaited.
func TestWaitBudgetForgetsAnswers(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	b := newWaitBudget(time.Second, clock)
	for i := range 2 * maxAwaited {
		image := fmt.Sprint("image", i)
		if !b.until([]string{image}, "").After(clock.Now()) {
			t.Fatalf("nobody waits for %s", image)
		}
		if b.look(func(string) bool { return false }, func(string) bool { return true }) || len(b.images) != 0 {
			t.Fatalf("%d images are awaited after their answers", len(b.images))
		}
	}
}

// As many images are waited for at once as a source that answers in time has earned: three
// at first, ten at most, also of one pod.
func TestWaitBudgetGrows(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	b := newWaitBudget(time.Second, clock)
	unknown, answered := map[string]bool{}, func(string) bool { return true }
	isUnknown := func(image string) bool { return unknown[image] }
	for _, want := range []int{3, 10} {
		gated := 0
		for i := range 20 {
			image := fmt.Sprint("image", i)
			unknown[image] = true
			if b.until([]string{image}, "").After(clock.Now()) {
				gated++
			}
		}
		if gated != want {
			t.Errorf("%d images are waited for at once, want %d", gated, want)
		}
		if !b.look(isUnknown, answered) {
			t.Error("no answer is awaited")
		}
		clear(unknown)
		if b.look(isUnknown, answered) {
			t.Error("an answer is awaited after all came")
		}
	}
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprint("of one pod ", i)
	}
	if b.until(many, ""); len(b.images) != 10 {
		t.Errorf("%d images of one pod are waited for", len(b.images))
	}
}

// A later member of a gang is gated for images that are waited for, not for the sake of the
// gang; and when the gang has waited, nothing more is awaited for it.
func TestWaitBudgetOfLaterMembers(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	b := newWaitBudget(time.Second, clock)
	for i := range leastAtOnce {
		if !b.until([]string{fmt.Sprint("image", i)}, "gang").After(clock.Now()) {
			t.Errorf("member %d is not gated", i)
		}
	}
	if b.until([]string{"one too many"}, "gang").After(clock.Now()) {
		t.Error("gated for an image that is one too many")
	}
	clock.SetTime(clock.Now().Add(time.Second))
	before := len(b.images)
	if b.until([]string{"late"}, "gang").After(clock.Now()) || len(b.images) != before {
		t.Errorf("the gang has waited, and %d more images are awaited", len(b.images)-before)
	}
}

package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// order runs a queue with one worker and returns the keys in the order in which they are
// worked on. add is called before the worker begins. The namespace of a key is its
// repository.
func order(t *testing.T, add func(*testQueues)) (keys []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begin := make(chan struct{})
		q := newTestQueues(1, func(_ context.Context, _ *Queue, key string) {
			<-begin
			keys = append(keys, key)
		})
		q.namespaces = func(key string) []string {
			var repository string
			_, _ = fmt.Sscanf(key, "reg/%s", &repository)
			return []string{repository[:1]}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); q.Run(ctx, nil) }()
		<-q.Started()
		q.add("reg/first:1", 0, Resolving)
		synctest.Wait() // the worker has it
		add(q)
		close(begin)
		time.Sleep(time.Hour)
		cancel()
		<-ended
	})
	return keys[1:]
}

// A namespace that names thousands of images delays one of another namespace by one image.
func TestNamespacesTakeTurns(t *testing.T) {
	keys := order(t, func(q *testQueues) {
		for i := range 5000 {
			q.add(fmt.Sprintf("reg/a:%d", i), 0, Resolving)
		}
		q.add("reg/b:1", 0, Resolving)
		q.add("reg/c:1", 0, Resolving)
	})
	if b, c := slices.Index(keys, "reg/b:1"), slices.Index(keys, "reg/c:1"); b > 1 || c > 2 || len(keys) != 5002 {
		t.Errorf("honest images are number %d and %d of %d", b+1, c+1, len(keys))
	}
}

// A namespace whose images come and go all the time, as those of a workload that is updated
// again and again, has one turn like others.
func TestComingAndGoingGivesNoTurns(t *testing.T) {
	keys := order(t, func(q *testQueues) {
		for i := range 1000 {
			key := fmt.Sprintf("reg/a:%d", i)
			q.add(key, 0, Resolving)
			q.remove(key)
		}
		for i := range 100 {
			q.add(fmt.Sprintf("reg/a:%d", i), 0, Resolving)
		}
		q.add("reg/b:1", 0, Resolving)
	})
	if b := slices.Index(keys, "reg/b:1"); b > 1 || len(keys) != 101 {
		t.Errorf("the honest image is number %d of %d", b+1, len(keys))
	}
}

// A namespace whose images take many requests has as many requests as others, not as many images.
func TestTurnsAreWorthRequests(t *testing.T) {
	const images, dear = 50, 10 * perTurn
	of := func(key string) string { return strings.Split(key, "/")[1] }
	begin, done := make(chan struct{}), make(chan string)
	q := &testQueues{namespaces: func(key string) []string { return []string{of(key)} }}
	q.Queues = New(1, func(string) bool { return false }, func(_ context.Context, _ *Queue, key string) int {
		<-begin
		done <- of(key)
		return map[string]int{"dear": dear, "cheap": 1}[of(key)]
	})
	q.start(t, nil)
	for i := range images {
		for _, namespace := range []string{"dear", "cheap"} {
			q.add(fmt.Sprintf("reg/%s/%d:1", namespace, i), 0, Resolving)
		}
	}
	close(begin)
	ended := map[string]int{}
	for range 2 * images {
		if ended[<-done]++; ended["cheap"] == images && ended["dear"] < images {
			break
		}
	}
	if n := ended["dear"]; n < 2 || n > 2+images*perTurn/dear {
		t.Errorf("%d images of %d requests had their turn before %d of one request", n, dear, images)
	}
	for range 2*images - ended["dear"] - ended["cheap"] { // with nobody else waiting, they go on
		<-done
	}
}

// A namespace whose images take one request more than a turn is worth loses a turn when these are a turn, and not
// with the first one.
func TestSmallDebts(t *testing.T) {
	now := time.Now()
	var f fairQueue
	for n := range 2 * perTurn {
		for _, namespace := range []string{"dear", "other"} {
			f.add(now, &item{key: fmt.Sprint(namespace, " ", n), namespace: namespace, due: now})
		}
	}
	others := 0
	for dear := 0; dear <= perTurn; {
		i := f.take(now)
		if f.done(now, i, map[string]int{"dear": perTurn + 1, "other": perTurn}[i.namespace]); i.namespace == "other" {
			others++
			continue
		}
		want := dear
		if dear == perTurn {
			want++
		}
		if dear++; others != want {
			t.Errorf("image %d comes after %d of others, want %d", dear, others, want)
		}
	}
}

// New images, however many, do not keep tags from being confirmed, nor what no workload
// names from being asked for.
func TestNoLevelStarves(t *testing.T) {
	keys := order(t, func(q *testQueues) {
		for i := range 1000 {
			q.add(fmt.Sprintf("reg/a:%d", i), 0, Resolving)
		}
		q.add("reg/b:old", 0, Confirming)
		q.add("reg/c:held", 0, Spare)
	})
	if old, held := slices.Index(keys, "reg/b:old"), slices.Index(keys, "reg/c:held"); old > 8 || held > 64 || old < 1 || held < old {
		t.Errorf("a tag was confirmed as number %d, a spare image as %d", old+1, held+1)
	}
}

// Of images that are no longer in use, nothing is left, also while the registry is paused.
func TestQueueRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worked := 0
		q := runQueues(t, 1, func(context.Context, *Queue, string) { worked++ })
		q.add("reg/x:later", time.Hour, Confirming)
		q.byName["reg"].Failed(time.Minute)
		for i := range 1000 {
			q.add(fmt.Sprintf("reg/x:%d", i), 0, Resolving)
		}
		for i := range 1000 {
			q.remove(fmt.Sprintf("reg/x:%d", i))
		}
		if n := q.Len(); n != 1 {
			t.Errorf("%d images left, want 1", n)
		}
		q.remove("reg/x:later")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := q.Len(); n != 0 || worked != 0 {
			t.Errorf("%d images left, %d worked on", n, worked)
		}
	})
}

// An image that two namespaces use waits for the shorter turn, whoever came first.
func TestSharedImageTakesTheShorterTurn(t *testing.T) {
	keys := order(t, func(q *testQueues) {
		for i := range 100 {
			q.add(fmt.Sprintf("reg/a:%d", i), 0, Resolving)
		}
		q.namespaces = func(string) []string { return []string{"a", "b"} }
		q.add("reg/a:99", 0, Resolving)
	})
	if at := slices.Index(keys, "reg/a:99"); at > 1 || len(keys) != 100 {
		t.Errorf("number %d of %d", at+1, len(keys))
	}
}

// An image keeps its place when it is named again, unless it has its turn sooner with another namespace.
func TestNamedAgain(t *testing.T) {
	var f fairQueue
	now := time.Now()
	name := func(key, namespace string) { f.add(now, &item{key: key, namespace: namespace, due: now}) }
	for i := range 20 {
		name(fmt.Sprint("a", i), "a")
		name(fmt.Sprint("b", i), "b")
	}
	// By a tenant without images of its own, and by one whose images wait, too.
	for range 100 {
		for i := range 3 {
			name(fmt.Sprint("a", i), "b")
			name(fmt.Sprint("a", i), "a")
		}
	}
	name("b19", "c")
	var keys []string
	for i := f.take(now); i != nil; i = f.take(now) {
		keys = append(keys, i.key)
		f.done(now, i, 1)
	}
	for i := range 3 {
		if at := slices.Index(keys, fmt.Sprint("a", i)); at > 2*i+2 {
			t.Errorf("a%d, which others named again and again, is number %d", i, at+1)
		}
	}
	if at := slices.Index(keys, "b19"); at > 2 {
		t.Errorf("b19, which a new namespace names too, is number %d", at+1)
	}
	// An image far behind in a flood comes sooner with those of a tenant who has some waiting.
	for i := range 1000 {
		name(fmt.Sprint("flood", i), "flood")
	}
	for i := range 5 {
		name(fmt.Sprint("own", i), "own")
	}
	name("flood999", "own")
	keys = nil
	for i := f.take(now); i != nil; i = f.take(now) {
		keys = append(keys, i.key)
		f.done(now, i, 1)
	}
	if at := slices.Index(keys, "flood999"); at > 12 || len(keys) != 1005 {
		t.Errorf("an image of a flood that another tenant names is number %d of %d", at+1, len(keys))
	}
}

// What was asked for earlier, or more urgently, stays so when it is asked for again.
func TestAskedAgainLater(t *testing.T) {
	keys := order(t, func(q *testQueues) {
		q.add("reg/a:1", 0, Resolving)
		q.add("reg/a:1", 10*time.Minute, Spare)
		q.add("reg/a:2", 20*time.Minute, Spare)
		q.add("reg/a:2", time.Minute, Spare)
		q.add("reg/a:2", time.Hour/2, Resolving)
		q.add("reg/b:1", 0, Confirming)
		q.add("reg/b:2", 5*time.Minute, Spare)
	})
	if want := []string{"reg/a:1", "reg/b:1", "reg/a:2", "reg/b:2"}; !slices.Equal(keys, want) {
		t.Errorf("in the order %q, want %q", keys, want)
	}
}

// A queue whose work is done is gone, and so are its goroutines; one that is paused stays
// until the pause is over.
func TestIdleQueuesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := runQueues(t, 4, func(_ context.Context, queue *Queue, key string) {
			if hostOf(key) == "limited" {
				queue.Failed(time.Hour)
			}
		})
		for i := range 3 * maxQueues {
			q.add(fmt.Sprintf("reg%d/x:1", i), 0, Resolving)
			synctest.Wait()
		}
		q.add("limited/x:1", 0, Resolving)
		synctest.Wait()
		q.mu.Lock()
		n, paused := len(q.byName), q.byName["limited"]
		q.mu.Unlock()
		if n != 1 || paused == nil || paused.busy != 0 {
			t.Errorf("%d queues left", n)
		}
	})
}

// A namespace that names many registries does not take all queues.
func TestOpenedQueuesAreBounded(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	q := runQueues(t, 1, func(context.Context, *Queue, string) { <-release })
	q.namespaces = func(key string) []string {
		if hostOf(key) == "honest" {
			return []string{"honest"}
		}
		return []string{"flood"}
	}
	for i := range 3 * maxQueues {
		q.add(fmt.Sprintf("reg%d/x:1", i), 0, Resolving)
	}
	q.add("honest/x:1", 0, Resolving)
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.byName); n != maxOpened+2 || q.byName["honest"] == nil {
		t.Errorf("%d queues, want %d, one for others, and that of the honest", n, maxOpened)
	}
}

// What is asked for while an image is worked on is done after that: at the earliest time
// and as urgently as anybody asked. If nothing uses it any longer, it is not.
func TestAskedForWhileWorkedOn(t *testing.T) {
	var q fairQueue
	now := time.Now()
	add := func(after time.Duration, level Level) {
		q.add(now, &item{key: "reg/x:1", due: now.Add(after), level: level})
	}
	add(0, Confirming)
	running := q.take(now)
	add(time.Hour, Resolving)
	add(time.Minute, Confirming)
	q.done(now, running, 0)
	if next, ok := q.next(now); !ok || !next.Equal(now.Add(time.Minute)) {
		t.Errorf("due at %v, %t", next, ok)
	}
	if running = q.take(now.Add(time.Minute)); running == nil || running.level != Resolving {
		t.Fatalf("taken: %+v", running)
	}
	add(0, Resolving)
	q.remove("reg/x:1")
	q.done(now, running, 0)
	if _, ok := q.next(now); ok || len(q.items) != 0 {
		t.Errorf("left: %v", q.items)
	}
}

// What is for later is worked on by the time at which it is due, in whatever order it came and
// whatever goes meanwhile.
func TestLaterByTime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	name := func(minute int) string { return fmt.Sprintf("reg/a:%02d", minute) }
	var want []string
	keys := order(t, func(q *testQueues) {
		for _, minute := range random.Perm(50) {
			q.add(name(minute), time.Duration(minute)*time.Minute, Resolving)
		}
		for minute := range 50 {
			if random.IntN(3) == 0 {
				q.remove(name(minute))
			} else {
				want = append(want, name(minute))
			}
		}
	})
	if !slices.Equal(keys, want) {
		t.Errorf("order %q, want %q", keys, want)
	}
}

// A namespace that had nothing to do has its turn before those that wait with many images; once, until all have had
// theirs. New namespaces, however many, leave each fourth turn to others.
func TestNewNamespacesGoFirst(t *testing.T) {
	now := time.Now()
	var f fairQueue
	add := func(namespace string, n int) {
		f.add(now, &item{key: fmt.Sprint(namespace, " ", n), namespace: namespace, due: now})
	}
	take := func() string {
		i := f.take(now)
		f.done(now, i, 1)
		return i.namespace
	}
	flooding := []string{"a", "b", "c", "d", "e"}
	for _, namespace := range flooding {
		for n := range 1000 {
			add(namespace, n)
		}
	}
	for range 10 {
		take()
	}
	before := map[string]int{}
	for range 3 { // with a turn between, which may be the fourth
		add("new", 0)
		before[take()]++
		before[take()]++
		if before["new"] == 0 {
			t.Error("a new namespace waited for those that flood")
		}
		add("new", 1)
		for got := ""; got != "new"; {
			got = take()
			before[got]++
		}
	}
	for _, namespace := range flooding {
		if before[namespace] == 0 {
			t.Errorf("%s had no turn between those of a namespace that comes again and again: %v", namespace, before)
		}
	}
	for n := range 1000 {
		add(fmt.Sprint("made-up-", n), 0)
	}
	old := 0
	for range 1000 {
		if slices.Contains(flooding, take()) {
			old++
		}
	}
	if old < 1000/freshTurns-len(flooding) || old > 1000/freshTurns+len(flooding) {
		t.Errorf("%d of 1000 turns for those who waited before a thousand new namespaces came", old)
	}
}

// What a namespace owes is not forgiven while new ones come: a thousand dear images of one that floods take no more of the
// requests than its turns are worth.
func TestDebtWhileNewNamespacesCome(t *testing.T) {
	now := time.Now()
	var f fairQueue
	add := func(namespace string, n int) {
		f.add(now, &item{key: fmt.Sprint(namespace, " ", n), namespace: namespace, due: now})
	}
	const dear = 100
	for n := range 1000 {
		add("flood", n)
	}
	for n := range 300 {
		add(fmt.Sprint("new-", n), 0)
	}
	requests := 0
	for others := 0; others < 300; {
		i := f.take(now)
		if i.namespace == "flood" {
			requests += dear
			f.done(now, i, dear)
			continue
		}
		others++
		f.done(now, i, 1)
	}
	if most := dear + 2*300/freshTurns*perTurn + dear; requests > most {
		t.Errorf("the images of the namespace that floods took %d requests before 300 others had one each, want %d at most", requests, most)
	}
}

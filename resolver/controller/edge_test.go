package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/store/storetest"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// fakeRegistry gives the answers that tests set.
type fakeRegistry struct {
	mu sync.Mutex
	// references that every image means; nil for those of expandForTest.
	references []string
	resolves   []string
	digests    []string
	resolve    func(reference string, platforms []string) (*registry.Resolution, error)
	// digest is that of resolve if it is nil.
	digest func(reference string) (string, error)
}

func (f *fakeRegistry) References(image string) ([]string, error) {
	if f.references != nil {
		return f.references, nil
	}
	return expandForTest(image)
}

func (f *fakeRegistry) Resolve(_ context.Context, reference string, platforms []string, _ []authn.Keychain) (*registry.Resolution, error) {
	f.mu.Lock()
	f.resolves = append(f.resolves, reference)
	f.mu.Unlock()
	return f.resolve(reference, platforms)
}

func (f *fakeRegistry) Digest(_ context.Context, reference string, _ []authn.Keychain) (string, error) {
	f.mu.Lock()
	f.digests = append(f.digests, reference)
	f.mu.Unlock()
	if f.digest != nil {
		return f.digest(reference)
	}
	found, err := f.resolve(reference, nil)
	if err != nil {
		return "", err
	}
	return found.Digest, nil
}

func (f *fakeRegistry) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.resolves)
}

func (f *fakeRegistry) Denied(reference string) error {
	if strings.Contains(reference, "denied") {
		return errors.New("not allowed")
	}
	return nil
}

type toldEvents struct {
	mu    sync.Mutex
	notes []string
	// about has the namespace of each.
	about []string
}

func (e *toldEvents) Eventf(regarding runtime.Object, _ runtime.Object, _, _, _, note string, args ...interface{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(note, args...))
	e.about = append(e.about, regarding.(*corev1.ObjectReference).Namespace)
}

// newTestResolver returns a resolver that leads a cluster of amd64 nodes.
func newTestResolver(t *testing.T, f *fakeRegistry, change ...func(*Options, *dependencies)) (*Resolver, *storeTest, *toldEvents) {
	s, told := &storeTest{Server: storetest.New(t), t: t}, &toldEvents{}
	options := Options{Registry: f, TagTTL: time.Hour, KeepUnused: 24 * time.Hour, Workers: 8}
	d := dependencies{clock: s.Clock, log: logr.Discard(), client: s.Server, events: told}
	for _, f := range change {
		f(&options, &d)
	}
	r := newResolver(options, d)
	s.Store = r.store
	addNodes(r, amd64...)
	r.leading.Store(true)
	return r, s, told
}

var both = []string{"linux/amd64", "linux/arm64"}

func twoPlatforms() *registry.Resolution {
	return &registry.Resolution{Digest: hash("f"), Index: true, Manifests: []v1alpha1.ImageManifestSpec{
		specOf(hash("a"), "linux/amd64"), specOf(hash("b"), "linux/arm64"),
	}}
}

// An object of an index of two platforms is deleted by hand ("at once", docs);
// the object of the other platform says that both were looked through.
func TestOneOfTwoPlatformsDeleted(t *testing.T) {
	for _, reference := range []string{"reg/x:1", "reg/x@" + hash("f")} {
		r, s, _ := newTestResolver(t, &fakeRegistry{})
		addNodes(r, both...)
		s.must(s.Resolved(t.Context(), reference, twoPlatforms(), both))
		s.Deleted(v1alpha1.ManifestName(hash("b")), "") // the API server of the test gives no UIDs
		if next := due(r.snapshot(one(reference))); next.task != resolve {
			t.Errorf("%s: the object of arm64 was deleted: task %d after %v, want resolve (%d)", reference, next.task, next.after, resolve)
		}
	}
}

// The API server fails between the two objects of an index.
func TestSecondObjectNotWritten(t *testing.T) {
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return twoPlatforms(), nil }}
	r, s, _ := newTestResolver(t, f)
	addNodes(r, both...)
	creates := 0
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if creates++; creates == 2 {
				return errors.New("etcd: leader changed")
			}
			return c.Create(ctx, o, opts...)
		},
	})
	image := one("reg/x:1")
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	queue := &queue.Queue{}
	r.work(t.Context(), queue, image.Key)
	r.work(t.Context(), queue, image.Key) // the retry
	if got := len(s.Objects()); got != 2 {
		next := due(r.snapshot(image))
		t.Errorf("%d objects after the retry, want one of each platform; next is task %d after %v", got, next.task, next.after)
	}
}

// A tag moves; the API server takes the new object and fails for the old one.
func TestOldObjectKeepsTag(t *testing.T) {
	const tag = "reg/x:1"
	r, s, _ := newTestResolver(t, &fakeRegistry{
		resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("b")), nil },
		digest:  func(string) (string, error) { return hash("b"), nil },
	})
	r.usage.Set(imagesFor("w", "ns", tag))
	s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
	s.must(s.Resolved(t.Context(), "reg/x@"+hash("a"), plain(hash("a")), amd64)) // keeps the old object
	fail := true
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if fail {
				return errors.New("timeout")
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	queue := &queue.Queue{}
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	r.work(t.Context(), queue, tag) // HEAD, GET, create b, a fails
	fail = false
	for range 2 { // the retry, and one time of confirming
		r.work(t.Context(), queue, tag)
		s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	}
	var list v1alpha1.ImageManifestList
	s.must(s.List(t.Context(), &list))
	for _, m := range list.Items {
		for _, ref := range m.Status.References {
			if ref.Name == tag && m.Spec.Digest != hash("b") {
				t.Errorf("%s still says %+v, as if just confirmed, though the tag moved to %s", m.Name, ref, hash("b")[:12])
			}
		}
	}
}

// soon waits until f is true.
func soon(t *testing.T, what string, f func() bool) {
	t.Helper()
	if err := poll.Until(t.Context(), 5*time.Millisecond, time.Minute, func(context.Context) error {
		if !f() {
			return errors.New("not yet: " + what)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSweepEvery(t *testing.T) {
	for keep, want := range map[time.Duration]time.Duration{time.Second: time.Second, 20 * time.Second: 2 * time.Second, time.Hour: 5 * time.Second} {
		if got := sweepEvery(keep); got != want {
			t.Errorf("kept for %s: every %s, want %s", keep, got, want)
		}
	}
}

// A digest comes into use while its object is being collected.
func TestUsedWhileCollected(t *testing.T) {
	pinned := "reg/x@" + hash("a")
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil }}
	r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.KeepUnused = time.Second })
	s.must(s.Resolved(t.Context(), pinned, plain(hash("a")), amd64))
	ctx, cancel := context.WithCancel(t.Context())
	go r.queues.Run(ctx, nil)
	<-r.queues.Started()
	handler := r.workloadHandler(&kinds[0])
	deleted := make(chan struct{})
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			defer close(deleted)
			handler.OnAdd(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: pinned}}},
			}, false) // it is known: nothing to do
			return c.Delete(ctx, o, opts...)
		},
	})
	r.usage.UnusedFor(pinned, 0)
	s.Clock.SetTime(s.Clock.Now().Add(time.Minute))
	collected := make(chan struct{})
	go func() { defer close(collected); r.collect(ctx) }()
	<-deleted
	soon(t, "the image is in use: its object is kept, or it is asked for again", func() bool { return len(s.Objects()) > 0 || f.asked() > 0 })
	cancel()
	<-collected
}

// The patch finds no object: it was deleted before load listed the objects that the
// cache still had, so no informer will ever report it.
func TestGoneUnnoticed(t *testing.T) {
	const tag = "reg/x:1"
	f := &fakeRegistry{
		resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil },
		digest:  func(string) (string, error) { return hash("a"), nil },
	}
	r, s, _ := newTestResolver(t, f)
	keys := queued(t, r)
	r.usage.Set(imagesFor("w", "ns", tag))
	s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
	for _, object := range s.Manifests() {
		s.must(s.Delete(t.Context(), &object))
	}
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour + time.Minute))
	r.work(t.Context(), &queue.Queue{}, tag) // confirms the tag, and finds no object to write that to
	if found := s.Lookup(tag); found != nil {
		t.Errorf("the store still believes in %+v", found)
	}
	if key := <-keys; key != tag {
		t.Errorf("asked again for %s", key)
	}
	r.work(t.Context(), &queue.Queue{}, tag)
	if len(s.Objects()) != 1 {
		t.Errorf("the object is not back; %d questions with HEAD, %d with GET", len(f.digests), len(f.resolves))
	}
}

// Eight workers meet one short outage.
func TestConcurrentFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue.Queue{}
		for range 8 {
			q.Failed(0)
		}
		if pause := pauseOf(q); pause > 3*time.Second {
			t.Errorf("one outage seen by eight workers at once: paused for %v; documented: 1s, doubling", pause.Round(time.Second))
		}
	})
}

// Retry-After of the second registry of a short name.
func TestWrongQueuePaused(t *testing.T) {
	image := usage.NewImage([]string{"first/x:1", "second/x:1"})
	r, _, _ := newTestResolver(t, &fakeRegistry{references: image.References, resolve: func(reference string, _ []string) (*registry.Resolution, error) {
		if strings.HasPrefix(reference, "second/") {
			return nil, &registry.Error{Reason: v1alpha1.ReasonRateLimited, Host: "second", RetryAfter: time.Hour, Err: errors.New("429")}
		}
		return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Host: "first", Err: errors.New("404")}
	}})
	first := &queue.Queue{}
	r.usage.Set(imagesFor("w", "ns", "x:1"))
	r.work(t.Context(), first, image.Key)
	if pause := pauseOf(first); pause > time.Minute {
		t.Errorf("the second registry asked to be left alone; the queue of the first is paused for %v", pause.Round(time.Minute))
	}
}

// The resolver itself had too much to do: the registry's queue goes on.
func TestBusyPausesNoQueue(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonUnavailable, Busy: true, Err: errors.New("busy")}
	}})
	const tolerated = 3
	q := &queue.Queue{}
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	for range 2 * tolerated {
		r.work(t.Context(), q, "reg/x:1")
		s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	}
	if pause := pauseOf(q); pause > 0 || r.attempts.of(one("reg/x:1")).Failures != 2*tolerated {
		t.Errorf("paused for %v", pause)
	}
}

// What is left of a quota is for the nodes: this process waits, and the next one, which may
// have another quota, does not leave the registry alone for it. A registry's own 429 it does.
func TestQuotaPausesNoNextProcess(t *testing.T) {
	for _, own := range []bool{true, false} {
		r, s, _ := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
			return nil, &registry.Error{Reason: v1alpha1.ReasonRateLimited, Busy: own, RetryAfter: time.Hour, Err: errors.New("nothing left")}
		}})
		r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
		r.work(t.Context(), &queue.Queue{}, "reg/x:1")
		if wait := r.attempts.of(one("reg/x:1")).Retry.Sub(s.Clock.Now()); wait < time.Hour {
			t.Errorf("asked again after %v", wait)
		}
		if limited := s.Limited(); (len(limited) == 0) != own {
			t.Errorf("the client's own refusal: %v, the next process waits for %v", own, limited)
		}
	}
}

// One of the registries that share a queue asks to be left alone: the others go on.
func TestSharedQueueIsNotPaused(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonRateLimited, RetryAfter: time.Hour, Err: errors.New("429")}
	}})
	var shared *queue.Queue // that of a registry that may not be asked is shared
	worked := make(chan struct{})
	denied := queue.New(1, func(string) bool { return true }, func(_ context.Context, q *queue.Queue, _ string) int {
		shared = q
		close(worked)
		return 0
	})
	go denied.Run(t.Context(), nil)
	<-denied.Started()
	denied.Add("denied", "denied/x:1", nil, 0, queue.Resolving)
	<-worked
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	for range 5 {
		r.work(t.Context(), shared, "reg/x:1")
		if wait := r.attempts.of(one("reg/x:1")).Retry.Sub(s.Clock.Now()); wait < time.Hour {
			t.Errorf("asked again after %v", wait)
		}
		s.Clock.SetTime(s.Clock.Now().Add(2 * time.Hour))
	}
	if pause := pauseOf(shared); pause > 0 {
		t.Errorf("all that share the queue wait for %v", pause)
	}
}

// Registries that may not be asked use up the queues.
func TestDeniedTakeQueues(t *testing.T) {
	denied := func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonDenied, Err: errors.New("not allowed")}
	}
	r, _, _ := newTestResolver(t, &fakeRegistry{resolve: denied})
	shared := make(chan bool, 1)
	r.queues = runQueues(t, 8, func(ctx context.Context, q *queue.Queue, key string) {
		if r.work(ctx, q, key); strings.HasSuffix(key, ".example.org/a:1") {
			shared <- q.Shared()
		}
	})
	for i := range 128 {
		// As handlers do it: a worker may have queued an image again before it is gone.
		changed := r.usage.Set(imagesFor("w", "ns", fmt.Sprintf("denied%d.example.com/x:1", i)))
		r.release(changed.Unused...)
		for _, image := range changed.Added {
			r.add(image, 0, queue.Resolving)
		}
	}
	r.release(r.usage.Set(imagesFor("w", "ns")).Unused...) // and they are gone again
	soon(t, "the queues of those that are gone end", func() bool {
		return r.queues.Len() == 0
	})
	for _, reference := range []string{"registry.example.org/a:1", "mirror.example.org/a:1"} {
		r.add(one(reference), 0, queue.Resolving)
		if <-shared {
			t.Error("after one workload named 128 registries that nobody may ask, all real ones share one queue until the restart")
		}
	}
}

// Without --pull-secrets nothing is different for a pod of another namespace.
func TestNegativeCacheOfNamespaces(t *testing.T) {
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
	}}
	r, _, _ := newTestResolver(t, f)
	handler := r.workloadHandler(&kinds[0])
	for i := range 50 {
		handler.OnAdd(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: fmt.Sprintf("ns-%d", i), UID: "1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: "reg/typo:1"}}},
		}, false)
		r.work(t.Context(), &queue.Queue{}, "reg/typo:1")
	}
	if n := f.asked(); n > 1 {
		t.Errorf("%d questions about one image that does not exist, in no time, without pull secrets", n)
	}
}

// A replica that waits for the lease sees workloads come and go.
func TestStandbyForgets(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	handler := r.workloadHandler(&kinds[0])
	for i := range 1000 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: fmt.Sprintf("reg/ci:%d", i)}}},
		}
		handler.OnAdd(pod, false)
		handler.OnDelete(pod)
		s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	}
	if n := len(r.attempts.byKey); n > 0 {
		t.Errorf("%d attempts are remembered of images that nothing uses", n)
	}
	if n := r.usage.CountIdle(); n > 30 {
		t.Errorf("%d idle references are remembered; %v is how long they count", n, r.options.KeepUnused)
	}
}

// The leader: a digest is never looked at again, so nobody forgets its attempt.
func TestLeaderForgets(t *testing.T) {
	f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
		return plain(store.DigestOf(reference)), nil
	}}
	r, _, _ := newTestResolver(t, f)
	for i := range 100 {
		reference := fmt.Sprintf("reg/x@sha256:%064x", i)
		r.forget(r.usage.Set(imagesFor("w", "ns", reference)).Unused...)
		r.work(t.Context(), &queue.Queue{}, reference)
	}
	r.forget(r.usage.Set(imagesFor("w", "ns")).Unused...)
	if n := len(r.attempts.byKey); n > 0 {
		t.Errorf("%d attempts are remembered of images that nothing uses", n)
	}
}

// The API server is reachable but does not accept writes (quota, RBAC,
// webhook).
func TestAPIServerRefusesWrites(t *testing.T) {
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil }}
	r, s, _ := newTestResolver(t, f)
	s.Fails = errors.New("etcdserver: mvcc: database space exceeded")
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	for range 20 {
		r.work(t.Context(), &queue.Queue{}, "reg/x:1")
	}
	if n := f.asked(); n > 1 {
		t.Errorf("the registry was asked %d times for what was known after the first", n)
	}
}

// API server limits Note of an Event to 1024 bytes and refuses longer ones.
func TestNoteOfEvent(t *testing.T) {
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonUnauthorized, Err: errors.New(strings.Repeat("e", 400))}
	}}
	r, _, told := newTestResolver(t, f, func(_ *Options, d *dependencies) { d.secrets = notFoundReader{} })
	c := imagesFor("w", "ns", "reg/x:1")
	c.Pull.Secrets = strings.Join([]string{"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}, ",")
	r.usage.Set(c)
	r.work(t.Context(), &queue.Queue{}, "reg/x:1")
	if len(told.notes) != 1 || len(told.notes[0]) > 1024 {
		t.Errorf("%d events, of %d bytes: more than 1024 are refused by the API server", len(told.notes), len(told.notes[0]))
	}
}

type notFoundReader struct{ client.Reader }

func (notFoundReader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return errors.New("the server was unable to return a response in the time allotted, but may still be processing the request")
}

// A node joins: images that are known are asked again for its platform, after the
// images that are not known.
func TestPriorityOfPlatforms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRegistry{}
		f.resolve = func(string, []string) (*registry.Resolution, error) {
			i := twoPlatforms()
			i.Digest = fmt.Sprintf("sha256:%064x", f.asked())
			return i, nil
		}
		r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.Workers = 1 })
		for i := range 20 {
			reference := fmt.Sprintf("reg/old:%d", i)
			s.must(s.Resolved(t.Context(), reference, &registry.Resolution{Digest: fmt.Sprintf("sha256:%064x", 1000+i), Index: true, Manifests: twoPlatforms().Manifests[:1]}, amd64))
			r.usage.Set(imagesFor(fmt.Sprint(i), "ns", reference))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		paused := map[string]time.Time{"reg": time.Now().Add(time.Minute)} // until all is in
		go func() { defer close(ended); r.queues.Run(ctx, paused) }()
		<-r.queues.Started()
		addNodes(r, both...)
		for _, image := range r.usage.Set(imagesFor("new", "ns", "reg/new:1")).Added {
			r.add(image, 0, queue.Resolving)
		}
		time.Sleep(10 * time.Minute)
		cancel()
		<-ended
		if at := slices.Index(f.resolves, "reg/new:1"); at < 0 || at > 2 {
			t.Errorf("the image nobody knows was asked for as number %d of %d, after those that only need one more platform", at+1, len(f.resolves))
		}
	})
}

// A restart: nodes are the same as before.
func TestRestartAllowsNoRetry(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	s.must(s.NotResolved(t.Context(), "reg/x:1", store.Failure{Failures: 5, Retry: s.Clock.Now().Add(10 * time.Minute), Reason: v1alpha1.ReasonPlatformNotFound, Message: "none"}))
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	// What Start does.
	r.nodes = newNodes(nil, false)
	addNodes(r, amd64...)
	if next := due(r.snapshot(one("reg/x:1"))); next.task != nothing {
		t.Errorf("task %d after %v: after a restart nothing is asked again", next.task, next.after)
	}
}

// The clock of the last leader was ahead.
func TestFuture(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	s.Clock.SetTime(s.Clock.Now().AddDate(1, 0, 0))
	s.must(s.Resolved(t.Context(), "reg/x:1", plain(hash("a")), amd64))
	s.Clock.SetTime(s.Clock.Now().AddDate(-1, 0, 0))
	if next := due(r.snapshot(one("reg/x:1"))); next.after > 2*time.Hour {
		t.Errorf("confirmed in the future: the tag is not asked about for %v", next.after)
	}
}

// Registries that come into use on nodes, for a short name of two.
func TestDeniedSecondRegistry(t *testing.T) {
	image := usage.NewImage([]string{"first.example.com/x:1", "second.example.com/x:1"})
	r, s, _ := newTestResolver(t, &fakeRegistry{references: image.References}, func(o *Options, _ *dependencies) {
		o.InUse, o.Policy = true, emptyPolicy(t)
	})
	r.usage.Set(imagesFor("w", "ns", "x:1"))
	s.must(s.NotResolved(t.Context(), image.References[0], store.Failure{Failures: 5, Retry: s.Clock.Now().Add(10 * time.Minute), Reason: v1alpha1.ReasonDenied, Message: "not allowed"}))
	r.nodes.set("a", nodeFacts{platform: "linux/amd64", registries: []string{"second.example.com"}})
	r.nodesChanged()
	if next := due(r.snapshot(image)); next.task != resolve {
		t.Errorf("second.example.com is in use now: task %d after %v", next.task, next.after)
	}
}

// A replica that does not lead, and a pod that a Deployment made.
func TestInvalidNameToldOnce(t *testing.T) {
	r, _, told := newTestResolver(t, &fakeRegistry{})
	yes := true
	handler := r.workloadHandler(&kinds[0])
	for i := range 100 {
		handler.OnAdd(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Namespace: "ns", UID: "1",
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "d", Controller: &yes}}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "REG/X"}}},
		}, true)
	}
	if n := len(told.notes); n > 0 {
		t.Errorf("%d events of a replica that does not lead, about pods that another object made; again after every restart of each replica", n)
	}
}

// The queues of a resolver know whose images they have: many of one namespace delay one of
// another by one image.
func TestNamespacesOfAResolverTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
			time.Sleep(time.Second)
			return plain(hash("a")), nil
		}}
		r, _, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.Workers = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); r.queues.Run(ctx, nil) }()
		<-r.queues.Started()
		name := func(namespace, reference string) {
			r.usage.Set(imagesFor(reference, namespace, reference))
			r.add(one(reference), 0, queue.Resolving)
		}
		for i := range 100 {
			name("many", fmt.Sprintf("reg/many:%d", i))
		}
		name("few", "reg/few:1")
		time.Sleep(10 * time.Minute)
		cancel()
		<-ended
		if place := slices.Index(f.resolves, "reg/few:1"); place < 0 || place > 2 || len(f.resolves) < 101 {
			t.Errorf("the image of the other namespace was number %d of %d", place+1, len(f.resolves))
		}
	})
}

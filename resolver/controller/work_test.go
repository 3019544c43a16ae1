package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// queued makes the queues only report which images were added, until the test
// ends.
func queued(t *testing.T, r *Resolver) <-chan string {
	keys := make(chan string, 100)
	r.queues = runQueues(t, 1, func(_ context.Context, _ *queue.Queue, key string) { keys <- key })
	return keys
}

// next waits for an image that is added to the queues. It returns "nothing" if none is.
func next(keys <-chan string) string {
	select {
	case key := <-keys:
		return key
	case <-time.After(time.Minute):
		return "nothing"
	}
}

// What was refused is asked for again when mirrors change, and what was not refused is not.
func TestMirrorsChanged(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	keys := queued(t, r)
	for _, tag := range []string{"reg/refused:1", "reg/well:1"} {
		r.usage.Set(imagesFor(tag, "ns", tag))
	}
	refused := one("reg/refused:1")
	r.attempts.failed(refused, r.attempts.of(refused), v1alpha1.ReasonNotFound, "404", 0)
	r.mirrorsChanged()
	if key := <-keys; key != refused.Key {
		t.Errorf("asked for %s", key)
	}
	select {
	case key := <-keys:
		t.Errorf("asked for %s, too", key)
	default:
	}
}

// An object with two tags is deleted. Both tags are asked again, no matter
// which part notices it.
func TestLostReferencesAreAskedAgain(t *testing.T) {
	const one, two = "reg/x:1", "reg/x:2"
	name := v1alpha1.ManifestName(hash("a"))
	tests := map[string]func(*Resolver, *storeTest){
		"the informer": func(r *Resolver, s *storeTest) {
			object := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}
			r.manifestHandler().OnDelete(object)
		},
		"a write": func(r *Resolver, s *storeTest) {
			s.must(s.Delete(t.Context(), &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}))
			s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
			r.work(t.Context(), &queue.Queue{}, one)
		},
	}
	for noticed, gone := range tests {
		t.Run(noticed, func(t *testing.T) {
			r, s, _ := newTestResolver(t, &fakeRegistry{digest: func(string) (string, error) { return hash("a"), nil }})
			keys := queued(t, r)
			r.usage.Set(imagesFor("w", "ns", one, two))
			s.must(s.Resolved(t.Context(), one, plain(hash("a")), amd64))
			s.must(s.Resolved(t.Context(), two, plain(hash("a")), amd64))
			// Nothing may remain of this failure, or the image waits.
			r.attempts.failed(usage.NewImage([]string{two}), attempt{}, v1alpha1.ReasonUnavailable, "down", time.Hour)
			gone(r, s)
			queued := map[string]bool{}
			for range 5 { // one may come again before two comes
				if queued[next(keys)] = true; queued[one] && queued[two] {
					break
				}
			}
			if !queued[one] || !queued[two] {
				t.Errorf("queued: %v", queued)
			}
			if next := due(r.snapshot(usage.NewImage([]string{two}))); next.task != resolve {
				t.Errorf("%s: task %d after %v", two, next.task, next.after)
			}
		})
	}
}

// If an API server accepts no writes, whichever image they are about, it is not asked for a
// growing time, and neither is the registry.
func TestPauseAfterFailedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
			return plain(hash(reference[len(reference)-1:])), nil
		}}
		r, s, _ := newTestResolver(t, f)
		keys := queued(t, r)
		names := []string{"reg/x:1", "reg/x:2", "reg/x:3", "reg/x:4"}
		r.usage.Set(imagesFor("w", "ns", names...))
		s.Fails = errors.New("etcdserver: mvcc: database space exceeded")
		for failures, name := range names {
			q := &queue.Queue{}
			r.work(t.Context(), q, name)
			pause, least := pauseOf(q), min(time.Second<<(failures+1), maxOutage)*4/5
			if outage := failures+1 >= toleratedImages; outage != (pause > 0) || outage && pause < least-time.Second/2 {
				t.Errorf("paused for %v after %d failures, want at least %v from %d on", pause, failures+1, least, toleratedImages)
			}
		}
		synctest.Wait()
		select {
		case key := <-keys:
			t.Errorf("%s is due before the pause ends", key)
		default:
		}
		s.Fails = nil
		r.work(t.Context(), &queue.Queue{}, "reg/x:1")
		if r.backlog.failures != 0 || r.backlog.of(one("reg/x:1")) != nil {
			t.Errorf("left of the failures: %d, %+v", r.backlog.failures, r.backlog.of(one("reg/x:1")))
		}
		if looked, failed := testutil.ToFloat64(r.metrics.looked), testutil.ToFloat64(r.metrics.writeErrors); looked != 5 || failed != 4 {
			t.Errorf("counted are %v looks and %v failed writes, want 5 and 4", looked, failed)
		}
	})
}

// Whatever the API server answers to a write about one image, others are not kept waiting.
func TestWritesAboutOneImageFail(t *testing.T) {
	kind := v1alpha1.ImageManifestsResource.GroupResource()
	for name, fails := range map[string]error{
		"invalid":          apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ImageManifest").GroupKind(), "x", nil),
		"bad request":      apierrors.NewBadRequest("no"),
		"forbidden":        apierrors.NewForbidden(kind, "x", errors.New("a webhook says so")),
		"too large":        apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
		"conflict":         apierrors.NewConflict(kind, "x", errors.New("again and again")),
		"internal error":   apierrors.NewInternalError(errors.New("failed calling webhook")),
		"what it must not": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
					digest := "sha256:" + strings.TrimPrefix(v1alpha1.UnresolvedName(reference), "unresolved-")
					answer := plain(digest)
					if strings.Contains(reference, "/evil/") && fails == nil {
						answer.Manifests[0].Platform = "linux/amd64/" + strings.Repeat("v", 100)
					}
					time.Sleep(10 * time.Millisecond)
					return answer, nil
				}}
				r, s, told := newTestResolver(t, f)
				evil := map[string]bool{}
				refusing := interceptor.NewClient(s.WithWatch, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						for _, reference := range o.(*v1alpha1.ImageManifest).Status.References {
							if fails != nil && evil[reference.Name] {
								return fails
							}
						}
						return c.Create(ctx, o, opts...)
					},
				})
				s.WithWatch = refusing
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { r.queues.Run(ctx, nil); close(ended) }()
				<-r.queues.Started()
				ask := func(namespace, image string) {
					for _, image := range r.usage.Set(imagesFor(image, namespace, image)).Added {
						r.ask(image)
					}
				}
				const hostile, honest = 8, 200
				for i := range hostile {
					image := fmt.Sprintf("docker.io/evil/x:%d", i)
					evil[image] = true
					ask("evil", image)
				}
				time.Sleep(10 * time.Second) // the hostile ones come first
				began := time.Now()
				for i := range honest {
					ask(fmt.Sprint("team-", i%10), fmt.Sprintf("docker.io/library/app:%d", i))
				}
				for resolved := 0; resolved < honest && time.Since(began) < time.Hour; resolved, _ = r.store.Count() {
					time.Sleep(100 * time.Millisecond)
				}
				took := time.Since(began)
				t.Logf("%d images are known after %v", honest, took)
				// An error of the server may be its outage, for as long as no other write succeeds: chance
				// may have it tried first after a pause or two.
				if limit := map[bool]time.Duration{false: time.Second, true: 6 * maxOutage}[name == "internal error"]; took > limit {
					t.Errorf("want at most %v", limit)
				}
				if name != "internal error" {
					told.mu.Lock()
					if n := len(told.notes); n != hostile || !strings.Contains(told.notes[0], v1alpha1.ReasonNotAccepted) {
						t.Errorf("%d events: %.200q", n, told.notes)
					}
					told.mu.Unlock()
				}
				cancel()
				<-ended
			})
		})
	}
}

// What a registry said about an image that nothing uses any longer is old when the image
// comes into use again: the registry is asked.
func TestUnwrittenAnswerEndsWithTheUse(t *testing.T) {
	const tag = "reg/x:1"
	points := hash("a")
	r, s, _ := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(points), nil }})
	r.usage.Set(imagesFor("w", "ns", tag))
	s.Fails = errors.New("etcdserver: no leader")
	r.work(t.Context(), &queue.Queue{}, tag)
	r.release(r.usage.Set(imagesFor("w", "ns")).Unused...)
	s.Fails, points = nil, hash("b")
	r.usage.Set(imagesFor("w", "ns", tag))
	r.work(t.Context(), &queue.Queue{}, tag)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("b")): tag})
}

// A process that no longer leads writes nothing of what it was asking for, and blames no
// registry.
func TestCanceledWork(t *testing.T) {
	const tag = "reg/x:1"
	for name, known := range map[string]bool{"resolve": false, "confirm": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			f := &fakeRegistry{
				resolve: func(string, []string) (*registry.Resolution, error) { cancel(); return nil, ctx.Err() },
				digest:  func(string) (string, error) { cancel(); return "", ctx.Err() },
			}
			r, s, told := newTestResolver(t, f)
			r.usage.Set(imagesFor("w", "ns", tag))
			if known {
				s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
				s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
			}
			q := &queue.Queue{}
			s.Writes = 0
			r.work(ctx, q, tag)
			failures, _ := q.State()
			if failed := r.attempts.of(one(tag)); s.Writes != 0 || failed.Reason != "" || failures != 0 || len(told.notes) != 0 {
				t.Errorf("%d writes, %+v, %d failures of the registry, events %q", s.Writes, failed, failures, told.notes)
			}
		})
	}
}

// An image is queued again for when something is due, also after a failed write.
func TestQueuedAgain(t *testing.T) {
	const tag = "reg/x:1"
	f := &fakeRegistry{
		resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil },
		digest:  func(string) (string, error) { return hash("a"), nil },
	}
	// A minimal time, so that there is nothing to wait for.
	r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.TagTTL = time.Millisecond })
	keys := queued(t, r)
	r.usage.Set(imagesFor("w", "ns", tag))
	expect := func(after string) {
		t.Helper()
		if got := next(keys); got != tag {
			t.Errorf("%s is queued after %s", got, after)
		}
	}
	r.work(t.Context(), &queue.Queue{}, tag)
	expect("it was resolved")
	r.work(t.Context(), &queue.Queue{}, tag)
	expect("nothing was due")
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.Fails = errors.New("etcd: leader changed")
	r.work(t.Context(), &queue.Queue{}, tag)
	expect("a write failed")
}

// The last workload is deleted while its image is asked for. Nothing may be
// remembered afterwards, although the handler could only drop what existed at
// that time.
func TestForgottenWhileAsked(t *testing.T) {
	const tag = "reg/x:1"
	f := &fakeRegistry{}
	r, _, _ := newTestResolver(t, f)
	f.resolve = func(string, []string) (*registry.Resolution, error) {
		r.forget(r.usage.Set(imagesFor("w", "ns")).Unused...)
		return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
	}
	r.usage.Set(imagesFor("w", "ns", tag))
	r.work(t.Context(), &queue.Queue{}, tag)
	if n := len(r.attempts.byKey); f.asked() != 1 || n != 0 {
		t.Errorf("asked %d times, %d attempts are remembered", f.asked(), n)
	}
}

// An image is found under the second name that it may mean. That the first was
// not resolved is then no longer reported.
func TestFoundUnderSecondName(t *testing.T) {
	image := usage.NewImage([]string{"first/x:1", "second/x:1"})
	missing := true
	f := &fakeRegistry{references: image.References, resolve: func(reference string, _ []string) (*registry.Resolution, error) {
		if missing || reference == image.References[0] {
			return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
		}
		return plain(hash("a")), nil
	}}
	r, s, _ := newTestResolver(t, f)
	r.usage.Set(imagesFor("w", "ns", "x:1"))
	r.work(t.Context(), &queue.Queue{}, image.Key)
	s.expect(map[string]string{v1alpha1.UnresolvedName(image.References[0]): image.References[0]})
	missing = false
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	r.work(t.Context(), &queue.Queue{}, image.Key)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): image.References[1]})
}

// An image that two registries may have is not given up while one of them may still
// answer, whichever failed first. The longest wait that one asks for counts, and
// what is told of them is bounded.
func TestFailuresOfTwoRegistries(t *testing.T) {
	long := errors.New(strings.Repeat("é", lookup.MaxMessage))
	final := &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: long}
	temporary := &registry.Error{Reason: v1alpha1.ReasonRateLimited, Err: long, RetryAfter: 3 * time.Hour}
	for name, failures := range map[string][]error{"final first": {final, temporary}, "temporary first": {temporary, final}} {
		t.Run(name, func(t *testing.T) {
			image := usage.NewImage([]string{"first/x:1", "second/x:1"})
			f := &fakeRegistry{references: image.References, resolve: func(reference string, _ []string) (*registry.Resolution, error) {
				return nil, failures[slices.Index(image.References, reference)]
			}}
			r, s, _ := newTestResolver(t, f)
			r.usage.Set(imagesFor("w", "ns", "x:1"))
			r.work(t.Context(), &queue.Queue{}, image.Key)
			failure := s.Failure(image.References[0])
			if failure.Reason != v1alpha1.ReasonRateLimited {
				t.Errorf("reason %s", failure.Reason)
			}
			if wait := failure.Retry.Sub(s.Clock.Now()); wait < 3*time.Hour {
				t.Errorf("tried again after %s, one registry asks for 3h", wait)
			}
			if n := len(failure.Message); n > lookup.MaxMessage || n < lookup.MaxMessage-1 || !utf8.ValidString(failure.Message) {
				t.Errorf("a message of %d bytes, at most %d: %.20q...", n, lookup.MaxMessage, failure.Message)
			}
		})
	}
}

// A failure is reported once as long as its reason stays, and to each workload that
// comes later.
func TestWhoIsToldOfAFailure(t *testing.T) {
	const tag = "reg/x:1"
	reason := v1alpha1.ReasonNotFound
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: reason, Err: errors.New("no")}
	}}
	r, s, told := newTestResolver(t, f)
	handler := r.workloadHandler(&kinds[0])
	pod := func(name, image string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: image}}},
		}
	}
	expect := func(events int, when string) {
		t.Helper()
		if n := len(told.notes); n != events {
			t.Errorf("%s: %d events, want %d: %q", when, n, events, told.notes)
		}
	}
	handler.OnAdd(pod("one", tag), false)
	expect(0, "before it was asked for")
	r.work(t.Context(), &queue.Queue{}, tag)
	expect(1, "not found")
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	r.work(t.Context(), &queue.Queue{}, tag)
	expect(1, "not found again")
	handler.OnAdd(pod("two", tag), false)
	expect(2, "another pod")
	reason = v1alpha1.ReasonUnauthorized
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	r.work(t.Context(), &queue.Queue{}, tag)
	expect(4, "another reason")
	handler.OnAdd(pod("three", "REG/X"), false)
	expect(5, "an invalid name")
	r.leading.Store(false)
	handler.OnAdd(pod("four", tag), false)
	handler.OnAdd(pod("five", "REG/X"), false)
	expect(5, "of a replica that does not lead")
}

// A workload with other pull secrets starts to use an image that was refused.
func TestOtherPullSecrets(t *testing.T) {
	const tag = "reg/x:1"
	for _, read := range []bool{true, false} {
		r, _, _ := newTestResolver(t, &fakeRegistry{}, func(_ *Options, d *dependencies) {
			if read {
				d.secrets = notFoundReader{}
			}
		})
		r.usage.Set(imagesFor("w", "ns", tag))
		r.attempts.failed(one(tag), attempt{}, v1alpha1.ReasonUnauthorized, "401", 0)
		r.workloadHandler(&kinds[0]).OnAdd(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "elsewhere", UID: "1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: tag}}},
		}, false)
		if next := due(r.snapshot(one(tag))); (next.task == resolve) != read {
			t.Errorf("pull secrets are read: %v; task %d after %v", read, next.task, next.after)
		}
	}
}

// A namespace brings other pull secrets again and again for an image that others use, too:
// it is told each time, they are not; and each time is no new turn.
func TestBringingSecretsTellsNobodyElse(t *testing.T) {
	const tag = "reg/x:1"
	read := map[string]int{}
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
	}}
	r, s, told := newTestResolver(t, f, func(_ *Options, d *dependencies) {
		d.secrets = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				read[key.Namespace]++
				return apierrors.NewNotFound(corev1.Resource("serviceaccounts"), key.Name)
			},
		})
	})
	for i := range 20 {
		r.usage.Set(imagesFor("w", fmt.Sprintf("quiet-%02d", i), tag))
	}
	r.work(t.Context(), &queue.Queue{}, tag)
	before := len(told.notes)
	handler := r.workloadHandler(&kinds[0])
	for i := range 10 {
		handler.OnUpdate(nil, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "loud", UID: "1"},
			Spec:       corev1.PodSpec{ServiceAccountName: fmt.Sprint("account-", i), Containers: []corev1.Container{{Image: tag}}},
		})
		r.work(t.Context(), &queue.Queue{}, tag)
		s.Clock.SetTime(s.Clock.Now().Add(time.Minute)) // longer than secrets are remembered
	}
	for i, namespace := range told.about[before:] {
		if namespace != "loud" {
			t.Errorf("%s is told %q", namespace, told.notes[before+i])
		}
	}
	if n := len(told.notes) - before; n != 10 {
		t.Errorf("%d events about 10 changes: %q", n, told.notes[before:])
	}
	for i := range 20 {
		if namespace := fmt.Sprintf("quiet-%02d", i); read[namespace] == 0 {
			t.Errorf("%s had no turn", namespace)
		}
	}
}

// More answers than the backlog has room for are not kept.
func TestBacklogIsBounded(t *testing.T) {
	b := newBacklog()
	for i := range maxLearned + 10 {
		b.keep(usage.Image{Key: string(rune('a' + i))}, &lookup.Answer{})
	}
	if n := len(b.answers); n != maxLearned {
		t.Errorf("%d answers", n)
	}
}

// A workload is changed: of the image that it no longer names nothing is left, neither that it
// failed nor that it is to be asked for.
func TestChangedWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newTestResolver(t, &fakeRegistry{})
		r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
		handler := r.workloadHandler(&kinds[1])
		before, after := deploymentOf("default", "reg/old:1"), deploymentOf("default", "reg/new:1")
		handler.OnAdd(before, false)
		synctest.Wait()
		old := one("reg/old:1")
		r.attempts.failed(old, r.attempts.of(old), v1alpha1.ReasonNotFound, "404", 0)
		r.add(old, time.Hour, queue.Resolving)
		handler.OnUpdate(before, after)
		synctest.Wait()
		if got, waiting := r.attempts.of(old), r.queues.Len(); got.Reason != "" || waiting != 0 {
			t.Errorf("remembered: %+v; %d wait", got, waiting)
		}
	})
}

// A workload's own pull secrets are tried before all others, if they are read at all.
func TestPullSecretsOfNewWorkload(t *testing.T) {
	for _, reads := range []bool{false, true} {
		read := map[string]bool{}
		f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil }}
		r, _, _ := newTestResolver(t, f, func(_ *Options, d *dependencies) {
			if !reads {
				return
			}
			d.secrets = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
					read[key.Namespace] = true
					return errors.New("no")
				},
			})
		})
		queued(t, r)
		var c usage.WorkloadImages
		for i := range 20 {
			c = imagesFor("w", fmt.Sprintf("ns-%02d", i), "reg/x:1")
			r.usage.Set(c)
		}
		r.askForNew(c, []usage.Image{one("reg/x:1")}) // the last one, whose turn would be later
		if r.work(t.Context(), &queue.Queue{}, "reg/x:1"); read[c.Pull.Namespace] != reads {
			t.Errorf("secrets are read: %v; read: %v", reads, read)
		}
	}
}

// Only the leader puts back what somebody else changed, and only ImageManifests are looked at.
func TestStandbyRepairsNothing(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	r.drifts = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[drift]())
	defer r.drifts.ShutDown()
	s.must(s.Resolved(t.Context(), "reg/x:1", plain(hash("a")), amd64))
	own := &v1alpha1.ImageManifest{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ManifestName(hash("a"))}, own))
	changed := own.DeepCopy()
	changed.ResourceVersion = "another"
	for _, test := range []struct {
		leads  bool
		object any
		want   int
	}{{false, changed, 0}, {true, own, 0}, {true, &corev1.Pod{}, 0}, {true, changed, 1}} {
		r.leading.Store(test.leads)
		r.manifestHandler().OnAdd(test.object, false)
		if got := r.drifts.Len(); got != test.want {
			t.Errorf("leads: %v, %T: %d objects to repair, want %d", test.leads, test.object, got, test.want)
		}
	}
}

// What a registry answers tells whether it has to be left alone: one that does not answer has,
// one that refuses has not. What never reached it says nothing.
func TestAnswersAndTheQueue(t *testing.T) {
	const tag = "reg/x:1"
	for _, known := range []bool{false, true} {
		for _, test := range []struct {
			reason   string // empty: it has the image
			asks     time.Duration
			failures int // in a row, after one before
		}{
			{"", 0, 0}, {v1alpha1.ReasonNotFound, 0, 0}, {v1alpha1.ReasonDenied, 0, 1},
			{v1alpha1.ReasonUnavailable, time.Hour, 2}, {v1alpha1.ReasonRateLimited, time.Hour, 2},
		} {
			synctest.Test(t, func(t *testing.T) {
				answer := error(nil)
				if test.reason != "" {
					answer = &registry.Error{Reason: test.reason, Err: errors.New("no"), RetryAfter: test.asks}
				}
				r, s, _ := newTestResolver(t, &fakeRegistry{
					resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), answer },
					digest:  func(string) (string, error) { return hash("a"), answer },
				})
				r.usage.Set(imagesFor("w", "ns", tag))
				question := "resolve"
				if known {
					question = "confirm"
					s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
					s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
				}
				q := &queue.Queue{}
				q.Failed(0)
				r.work(t.Context(), q, tag)
				failures, _ := q.State()
				if pause := pauseOf(q); failures != test.failures || (pause > 0) != (test.asks > 0) || pause < test.asks && test.asks > 0 {
					t.Errorf("known %v, %q: %d failures in a row, a pause of %v", known, test.reason, failures, pause)
				}
				failed := r.attempts.of(one(tag))
				if wait := failed.Retry.Sub(s.Clock.Now()); failed.Reason != test.reason || wait < test.asks && test.asks > 0 {
					t.Errorf("known %v, %q: %+v, tried again after %v", known, test.reason, failed, wait)
				}
				counted := cmp.Or(test.reason, v1alpha1.ReasonResolved)
				if n := testutil.ToFloat64(r.metrics.lookups.WithLabelValues(question, counted)); n != 1 {
					t.Errorf("known %v, %q: %v times %s is counted for %s", known, test.reason, n, counted, question)
				}
			})
		}
	}
}

// An image of many layers has no room although one of few would have: its workloads are told.
func TestLargeImageWithoutRoom(t *testing.T) {
	large := plain(hash("a"))
	for len(large.Manifests[0].Layers) < 512 {
		large.Manifests[0].Layers = append(large.Manifests[0].Layers, large.Manifests[0].Layers[0])
	}
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return large, nil }}
	r, s, told := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.MaxImages, o.MaxImagesPerNamespace = 4, 4 })
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	r.work(t.Context(), &queue.Queue{}, "reg/x:1")
	if f.asked() != 1 || len(s.Objects()) != 0 || len(told.notes) != 1 || !strings.Contains(told.notes[0], v1alpha1.ReasonTooMany) {
		t.Errorf("asked for %q, %d objects, events %q", f.resolves, len(s.Objects()), told.notes)
	}
}

// What is known is confirmed also where nothing else has room.
func TestConfirmedWithoutRoom(t *testing.T) {
	f := &fakeRegistry{digest: func(string) (string, error) { return hash("a"), nil }}
	r, s, told := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.MaxImages, o.MaxImagesPerNamespace = 1, 1 })
	r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
	r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
	s.must(s.Resolved(t.Context(), "reg/x:1", plain(hash("a")), amd64))
	r.quotas.resolved.Admit([]string{"ns"}, 1)
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	r.work(t.Context(), &queue.Queue{}, "reg/x:1")
	if len(f.digests) != 1 || len(told.notes) != 0 {
		t.Errorf("confirmed %q, events %q", f.digests, told.notes)
	}
}

// An image is found under its second name, and that cannot be written, or that it was not found
// under the first cannot be removed: the answer is kept, and the registries are not asked again.
func TestSecondNameNotWritten(t *testing.T) {
	for name, fail := range map[string]func(s *storeTest, err error){
		"no write":    func(s *storeTest, err error) { s.Fails = err },
		"no deletion": func(s *storeTest, err error) { s.FailsDelete = err },
	} {
		image := usage.NewImage([]string{"first/x:1", "second/x:1"})
		missing := &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
		f := &fakeRegistry{references: image.References, resolve: func(reference string, _ []string) (*registry.Resolution, error) {
			if reference == image.References[0] {
				return nil, missing
			}
			return plain(hash("a")), nil
		}}
		r, s, _ := newTestResolver(t, f)
		r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
		r.usage.Set(imagesFor("w", "ns", "x:1"))
		failed := r.attempts.failed(image, attempt{}, v1alpha1.ReasonNotFound, "404", 0)
		s.must(s.NotResolved(t.Context(), image.References[0], failed.Failure))
		s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
		fail(s, errors.New("etcdserver: no leader"))
		r.work(t.Context(), &queue.Queue{}, image.Key)
		fail(s, nil)
		r.work(t.Context(), &queue.Queue{}, image.Key)
		s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): image.References[1]})
		if f.asked() != 2 || r.attempts.of(image) != (attempt{}) || r.backlog.of(image) != nil {
			t.Errorf("%s: asked for %q, remembered %+v", name, f.resolves, r.attempts.of(image))
		}
	}
}

// A digest could not be resolved, and a tag of the same content can: the digest is known, too, also
// once the tag is no longer used.
func TestFailedDigestBecomesKnown(t *testing.T) {
	const tag = "reg/x:1"
	digest := "reg/x@" + hash("a")
	r, s, told := newTestResolver(t, &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
		if reference == digest {
			return nil, &registry.Error{Reason: v1alpha1.ReasonUnavailable, Err: errors.New("503")}
		}
		return plain(hash("a")), nil
	}})
	r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
	r.usage.Set(imagesFor("pinned", "ns", digest))
	tagged := imagesFor("tagged", "ns", tag)
	r.usage.Set(tagged)
	r.work(t.Context(), &queue.Queue{}, digest)
	r.work(t.Context(), &queue.Queue{}, tag)
	s.expect(map[string]string{v1alpha1.UnresolvedName(digest): digest, v1alpha1.ManifestName(hash("a")): tag})

	s.Clock.SetTime(s.Clock.Now().Add(10 * time.Minute))
	s.FailsDelete = errors.New("etcdserver: no leader")
	r.work(t.Context(), &queue.Queue{}, digest)
	s.FailsDelete = nil
	r.work(t.Context(), &queue.Queue{}, digest)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): tag + " " + digest})
	if got := r.attempts.of(one(digest)); got != (attempt{}) {
		t.Errorf("remembered: %+v", got)
	}
	if next := due(r.snapshot(one(digest))); next.after >= 0 {
		t.Errorf("next: %+v", next)
	}
	before := len(told.notes)
	r.askForNew(imagesFor("another", "ns", digest), []usage.Image{one(digest)})
	if len(told.notes) != before {
		t.Errorf("a new workload is told %q", told.notes[before:])
	}

	r.release(r.usage.Unset(tagged.Workload)...)
	s.Clock.SetTime(s.Clock.Now().Add(r.options.KeepUnused))
	r.sweep(t.Context())
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): digest})
}

// A digest is resolved in the end, and that it was not cannot be removed: that is tried again.
func TestFailureOfDigestNotRemoved(t *testing.T) {
	digest, refused := "reg/x@"+hash("a"), error(&registry.Error{Reason: v1alpha1.ReasonUnavailable, Err: errors.New("503")})
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), refused }}
	r, s, _ := newTestResolver(t, f)
	r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
	r.usage.Set(imagesFor("w", "ns", digest))
	r.work(t.Context(), &queue.Queue{}, digest)
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	refused, s.FailsDelete = nil, errors.New("etcdserver: no leader")
	r.work(t.Context(), &queue.Queue{}, digest)
	s.FailsDelete = nil
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	r.work(t.Context(), &queue.Queue{}, digest)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): digest})
	if f.asked() != 2 || r.attempts.of(one(digest)) != (attempt{}) || r.backlog.of(one(digest)) != nil {
		t.Errorf("asked for %q, remembered %+v and %+v", f.resolves, r.attempts.of(one(digest)), r.backlog.of(one(digest)))
	}
}

// The handlers of pods and Jobs run at the same time: a pod comes between the end of a Job, the
// last one that used the image, and the release of the image.
func TestUsedWhileReleased(t *testing.T) {
	for _, leads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r, _, _ := newTestResolver(t, &fakeRegistry{})
			r.leading.Store(leads)
			keys := queued(t, r)
			const tag = "reg/x:1"
			job := imagesFor("job", "ns", tag)
			r.usage.Set(job)
			unused := r.usage.Unset(job.Workload)
			r.usage.Set(imagesFor("pod", "ns", tag))
			r.release(unused...)
			synctest.Wait()
			if asked := len(keys) == 1; asked != leads {
				t.Errorf("leads: %t; asked: %t", leads, asked)
			}
		})
	}
}

// A tag that cannot be confirmed is known all the same, unless it is not for all platforms: no
// workload is told that its layers are not known.
func TestNotConfirmedIsKnown(t *testing.T) {
	const tag = "reg/x:1"
	r, s, told := newTestResolver(t, &fakeRegistry{})
	s.must(s.Resolved(t.Context(), tag, twoPlatforms(), amd64))
	r.attempts.failed(one(tag), attempt{}, v1alpha1.ReasonUnavailable, "503", 0)
	for platforms, want := range []int{0, 1} {
		addNodes(r, both[:platforms+1]...)
		r.reportFailure(one(tag), imagesFor("w", "ns", tag).Workload)
		if len(told.notes) != want {
			t.Errorf("%q: events %q", both[:platforms+1], told.notes)
		}
	}
}

// The last workload goes while an object is written: since when that is unused is known, and
// for whom it counts.
func TestUnusedWhileWritten(t *testing.T) {
	for _, missing := range []error{nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}} {
		const tag = "reg/x:1"
		r, s, _ := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), missing }})
		r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
		c := imagesFor("w", "ns", tag)
		r.usage.Set(c)
		s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
			Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				r.release(r.usage.Unset(c.Workload)...)
				return w.Create(ctx, o, opts...)
			},
		})
		s.Clock.SetTime(s.Clock.Now().Add(time.Minute))
		r.work(t.Context(), &queue.Queue{}, tag)
		if got := r.usage.TenantOf(tag); len(s.Objects()) != 1 || got.InUse || !got.Since.Equal(s.Clock.Now()) || !slices.Equal(got.Namespaces, []string{"ns"}) {
			t.Errorf("error %v: %d objects, of %+v", missing, len(s.Objects()), got)
		}
	}
}

// A process that stops to lead asks no further registry for an image.
func TestCanceledAtTheFirstName(t *testing.T) {
	image := usage.NewImage([]string{"first/x:1", "second/x:1"})
	ctx, cancel := context.WithCancel(t.Context())
	f := &fakeRegistry{references: image.References, resolve: func(string, []string) (*registry.Resolution, error) {
		cancel()
		return nil, ctx.Err()
	}}
	r, _, _ := newTestResolver(t, f)
	r.usage.Set(imagesFor("w", "ns", "x:1"))
	r.work(ctx, &queue.Queue{}, image.Key)
	if f.asked() != 1 {
		t.Errorf("asked for %q", f.resolves)
	}
}

// A tag has moved: the registry that is known to have it is asked, not the others that might.
// If that cannot be written and the tag moves back, what it was meanwhile is forgotten.
func TestMovedThereAndBack(t *testing.T) {
	image := usage.NewImage([]string{"first/x:1", "second/x:1"})
	points := hash("b")
	f := &fakeRegistry{
		references: image.References,
		resolve:    func(string, []string) (*registry.Resolution, error) { return plain(points), nil },
		digest:     func(string) (string, error) { return points, nil },
	}
	r, s, _ := newTestResolver(t, f)
	r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
	r.usage.Set(imagesFor("w", "ns", "x:1"))
	s.must(s.Resolved(t.Context(), image.References[1], plain(hash("a")), amd64))
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.Fails = errors.New("etcdserver: no leader")
	r.work(t.Context(), &queue.Queue{}, image.Key)
	if !slices.Equal(f.resolves, image.References[1:]) || r.backlog.of(image) == nil {
		t.Errorf("asked for %q", f.resolves)
	}
	s.Fails, points = nil, hash("a")
	r.work(t.Context(), &queue.Queue{}, image.Key)
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): image.References[1]})
	if r.backlog.of(image) != nil {
		t.Error("what the tag was meanwhile may still be written")
	}
}

// Who may not pull an image is told what is wrong with the pull secrets.
func TestUnauthorizedTellsProblems(t *testing.T) {
	refused := &registry.Error{Reason: v1alpha1.ReasonUnauthorized, Err: errors.New("401")}
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return nil, refused }}
	for name, test := range map[string]struct {
		change func(*Options, *dependencies)
		want   string
	}{
		"secrets are read":     {func(_ *Options, d *dependencies) { d.secrets = fake.NewClientBuilder().Build() }, "ns/missing does not exist"},
		"secrets are not read": {func(*Options, *dependencies) {}, "--pull-secrets"},
	} {
		r, _, events := newTestResolver(t, f, test.change)
		c := imagesFor("w", "ns", "reg/x:1")
		c.Pull.Secrets = "missing"
		r.usage.Set(c)
		r.usage.Set(imagesFor("w", "elsewhere", "reg/x:1"))
		r.work(t.Context(), &queue.Queue{}, "reg/x:1")
		told := map[string]string{}
		for i, note := range events.notes {
			told[events.about[i]] = note
		}
		if got := told["ns"]; !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q in it", name, got, test.want)
		}
		public := r.attempts.of(one("reg/x:1")).Message
		for who, got := range map[string]string{"another namespace": told["elsewhere"], "readers of the object": public} {
			if got == "" || strings.Contains(got, "missing") || strings.Contains(got, "--pull-secrets") != (test.want == "--pull-secrets") {
				t.Errorf("%s: %s are told %q", name, who, got)
			}
		}
	}
}

// A tag that could not be confirmed and then was: the failure is forgotten.
func TestConfirmedAfterFailure(t *testing.T) {
	const tag = "reg/x:1"
	down := true
	f := &fakeRegistry{
		resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil },
		digest: func(string) (string, error) {
			if down {
				return "", &registry.Error{Reason: v1alpha1.ReasonUnavailable, Err: errors.New("down")}
			}
			return hash("a"), nil
		},
	}
	r, s, _ := newTestResolver(t, f)
	r.usage.Set(imagesFor("w", "ns", tag))
	r.work(t.Context(), &queue.Queue{}, tag)
	pass := func(d time.Duration) { s.Clock.SetTime(s.Clock.Now().Add(d)) }
	pass(time.Hour + time.Minute)
	r.work(t.Context(), &queue.Queue{}, tag)
	if r.attempts.of(one(tag)).Failures == 0 {
		t.Fatal("the failure is not remembered")
	}
	down = false
	pass(time.Hour)
	r.work(t.Context(), &queue.Queue{}, tag)
	if got := r.attempts.of(one(tag)); got.Failures != 0 {
		t.Errorf("after it was confirmed: %+v", got)
	}
	if n := testutil.ToFloat64(r.metrics.lookups.WithLabelValues("confirm", v1alpha1.ReasonResolved)); n != 1 {
		t.Errorf("%v tags counted as confirmed", n)
	}
	for _, object := range s.Manifests() {
		if c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionConfirmed); c != nil && c.Status == metav1.ConditionFalse {
			t.Errorf("%s: %+v", object.Name, c)
		}
	}
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// Objects count for their layers, also after a restart, when the layers are no longer in
// memory.
func TestLayersAreCounted(t *testing.T) {
	wide := plain(hash("a"))
	wide.Manifests[0].Layers = slices.Repeat([]v1alpha1.ImageLayer{{Digest: hash("b"), Size: 1}}, 500)
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return wide, nil }}
	r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.MaxImages, o.MaxImagesPerNamespace = 100, 20 })
	pinned := "reg/x@" + hash("a")
	work := func(r *Resolver, reference string) {
		t.Helper()
		r.usage.Set(imagesFor(reference, "ns", reference))
		r.work(t.Context(), &queue.Queue{}, reference)
	}
	work(r, "reg/x:1")
	work(r, pinned) // without a request
	work(r, "reg/x:2")
	work(r, "reg/y@"+hash("a"))
	s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): "reg/x:1 " + pinned})
	if n := f.asked(); n != 2 {
		t.Errorf("%d requests", n)
	}
	next := newResolver(r.options, dependencies{clock: s.Clock, log: r.log, client: s.Server, events: r.events})
	s.must(next.store.Load(t.Context()))
	next.usage.Set(imagesFor("w", "ns", "reg/x:1", pinned))
	next.sweep(t.Context())
	if ns := []string{"ns"}; !next.quotas.resolved.Admit(ns, 4) || next.quotas.resolved.Admit(ns, 1) {
		t.Error("they do not count 2 x 8 times")
	}
}

// A namespace at its limit: its further images are not asked for, and it is told; its oldest
// make room, and are looked at again some time later, digests too. Others notice nothing.
func TestTooManyImages(t *testing.T) {
	f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
		if digest := store.DigestOf(reference); digest != "" {
			return plain(digest), nil
		}
		return plain(hash("f")), nil
	}}
	r, s, told := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.MaxImages, o.MaxImagesPerNamespace = 100, 16 })
	r.queues = runQueues(t, 1, func(context.Context, *queue.Queue, string) {})
	var references []string
	work := func(namespace, reference string) {
		r.usage.Set(imagesFor(reference, namespace, reference))
		r.work(t.Context(), &queue.Queue{}, reference)
		s.Clock.SetTime(s.Clock.Now().Add(time.Second))
	}
	for i := range 20 {
		references = append(references, fmt.Sprintf("reg/x@sha256:%064x", i))
		work("full", references[i])
	}
	work("other", "reg/other:1")
	known := func() (n int) {
		for _, reference := range references {
			if r.store.Has(reference) {
				n++
			}
		}
		return n
	}
	if n := known(); n != 16 || f.asked() != 17 || r.store.Lookup("reg/other:1") == nil {
		t.Errorf("%d of 20 are known, of 16 at most, after %d requests", n, f.asked())
	}
	if len(told.notes) != 4 || !strings.Contains(told.notes[0], v1alpha1.ReasonTooMany) || slices.Contains(told.about, "other") {
		t.Errorf("events %q", told.notes)
	}
	waiting := r.queues.Len()
	r.sweep(t.Context())
	if n := known(); n != 13 || r.store.Lookup("reg/other:1") == nil || r.store.Lookup(references[0]) != nil {
		t.Errorf("%d of 20 are known, want the newest 13", n)
	}
	if r.queues.Len() != waiting+3 || len(told.notes) != 7 {
		t.Errorf("%s is never looked at again, or nobody is told: %q", references[0], told.notes)
	}
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	for _, reference := range references {
		r.work(t.Context(), &queue.Queue{}, reference)
	}
	if n := known(); n != 16 {
		t.Errorf("%d of 20 are known when there is room for 16", n)
	}
	if len(told.notes) != 7 {
		t.Errorf("told again: %q", told.notes[7:])
	}
}

// Images that only nodes hold, and those whose users a restart forgot, may take what
// namespaces leave: they are not one more namespace.
func TestImagesOfNoKnownNamespace(t *testing.T) {
	f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
		return plain(store.DigestOf(reference)), nil
	}}
	r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) {
		o.ImagesOnNodes, o.MaxImages, o.MaxImagesPerNamespace = true, 60, 16
	})
	var references []string
	for i := range 40 {
		references = append(references, fmt.Sprintf("reg.example/x@sha256:%064x", i))
	}
	r.nodeHandler().OnAdd(nodeWith(t, "n", references...), false)
	for _, reference := range references {
		r.work(t.Context(), &queue.Queue{}, reference)
	}
	r.sweep(t.Context())
	if resolved, _ := r.store.Count(); resolved != 40 {
		t.Errorf("%d of 40 images on nodes are known", resolved)
	}
	r.nodeHandler().OnDelete(nodeWith(t, "n"))
	for i := range 600 {
		s.must(s.Resolved(t.Context(), fmt.Sprintf("reg.example/old@sha256:%064x", 100+i), plain(fmt.Sprintf("sha256:%064x", 100+i)), amd64))
	}
	r.rememberUnused()
	r.sweep(t.Context())
	if resolved, _ := r.store.Count(); resolved != 640 {
		t.Errorf("%d of 640 unused images are left, there is room for %d", resolved, usage.MaxUnused.All)
	}
}

// A workload that is changed again and again, each time with other names: what is left of
// it is bounded, and another namespace's is not touched.
func TestFloodOfNames(t *testing.T) {
	missing := &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: fmt.Errorf("404")}
	f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return nil, missing }}
	r, s, told := newTestResolver(t, f)
	r.usage.Set(imagesFor("w", "honest", "reg/typo:1"))
	r.work(t.Context(), &queue.Queue{}, "reg/typo:1")
	for update := range 20 {
		names := make([]string, 256)
		for i := range names {
			names[i] = fmt.Sprintf("reg/flood:%d-%d", update, i)
		}
		r.release(r.usage.Set(imagesFor("cronjob", "flood", names...)).Unused...)
		for _, name := range names {
			r.work(t.Context(), &queue.Queue{}, name)
		}
		if n := len(s.Objects()); n > usage.MaxUnresolved.Each+1 {
			t.Fatalf("%d objects after %d updates, of one namespace at most %d", n, update+1, usage.MaxUnresolved.Each)
		}
		r.sweep(t.Context())
	}
	if s.Objects()[v1alpha1.UnresolvedName("reg/typo:1")] == "" {
		t.Error("another namespace lost its object")
	}
	if testutil.ToFloat64(r.metrics.unwritten) == 0 {
		t.Error("what there was no room for is not counted")
	}
	if n := len(told.notes); n > 2*eventBurst {
		t.Errorf("%d events", n)
	}
	r.release(r.usage.Unset(imagesFor("cronjob", "flood").Workload)...)
	s.Clock.SetTime(s.Clock.Now().Add(keepUnresolved))
	r.sweep(t.Context())
	s.expect(map[string]string{v1alpha1.UnresolvedName("reg/typo:1"): "reg/typo:1"})
	if n := r.usage.CountIdle() + len(r.attempts.byKey); n > 2 {
		t.Errorf("%d things are remembered of what is gone: %d %v", n, r.usage.CountIdle(), r.attempts.byKey)
	}
}

// How long something is unused is known after a restart, and after the restart that comes
// before it would be collected.
func TestUnusedSinceSurvivesRestarts(t *testing.T) {
	f := &fakeRegistry{}
	r, s, _ := newTestResolver(t, f)
	const tag, missing, used = "reg/x:1", "reg/none:1", "reg/used:1"
	s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
	s.must(s.Resolved(t.Context(), used, plain(hash("b")), amd64))
	s.must(s.NotResolved(t.Context(), missing, store.Failure{Failures: 1, Reason: v1alpha1.ReasonNotFound, Message: "404"}))
	for restart := range 10 {
		next := newResolver(r.options, dependencies{clock: s.Clock, log: r.log, client: s.Server, events: r.events})
		s.must(next.store.Load(t.Context()))
		next.usage.Set(imagesFor("w", "ns", used))
		next.rememberUnused()
		next.sweep(t.Context())
		if left := s.Objects()[v1alpha1.UnresolvedName(missing)] != ""; left != (restart == 0) {
			t.Errorf("after %d restarts, one each 11 minutes: an object of what was not resolved: %t", restart, left)
		}
		s.Clock.SetTime(s.Clock.Now().Add(11 * time.Minute))
	}
	s.Clock.SetTime(s.Clock.Now().Add(23 * time.Hour))
	last := newResolver(r.options, dependencies{clock: s.Clock, log: r.log, client: s.Server, events: r.events})
	s.must(last.store.Load(t.Context()))
	last.usage.Set(imagesFor("w", "ns", used))
	last.rememberUnused()
	last.sweep(t.Context())
	if got := fmt.Sprint(s.Objects()); got != fmt.Sprint(map[string]string{v1alpha1.ManifestName(hash("b")): used}) {
		t.Errorf("left: %s", got)
	}
}

// What the policy forbids now has no object any longer, and is asked about again: it may be
// allowed by then.
func TestDeniedIsSweptAndAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s, _ := newTestResolver(t, &fakeRegistry{})
		again := queued(t, r)
		const denied, missing = "reg/once:1", "reg/missing:1"
		for reference, reason := range map[string]string{denied: v1alpha1.ReasonDenied, missing: v1alpha1.ReasonNotFound} {
			r.usage.Set(imagesFor(reference, "ns", reference))
			s.must(s.NotResolved(t.Context(), reference, store.Failure{Failures: 1, Reason: reason, Message: "no"}))
		}
		r.sweep(t.Context())
		synctest.Wait()
		s.expect(map[string]string{v1alpha1.UnresolvedName(missing): missing})
		var asked []string
		for len(again) > 0 {
			asked = append(asked, <-again)
		}
		if !slices.Equal(asked, []string{denied}) {
			t.Errorf("asked for again: %q", asked)
		}
		room := 0
		for r.quotas.unresolved.Admit([]string{"ns"}, 1) {
			room++
		}
		if room != usage.MaxUnresolved.Each-1 {
			t.Errorf("room for %d that are not resolved, besides the one", room)
		}
	})
}

// What a namespace no longer uses is bounded: the oldest goes, but what comes into use meanwhile
// is asked for again.
func TestUnusedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s, _ := newTestResolver(t, &fakeRegistry{})
		again := queued(t, r)
		name := func(i int) string { return fmt.Sprintf("reg/x@sha256:%064x", i) }
		for i := range usage.MaxUnused.Each + 20 {
			s.must(s.Resolved(t.Context(), name(i), plain(fmt.Sprintf("sha256:%064x", i)), amd64))
			c := imagesFor("w", "ns", name(i))
			r.usage.Set(c)
			r.release(r.usage.Unset(c.Workload)...)
			s.Clock.SetTime(s.Clock.Now().Add(time.Second))
		}
		s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				if o.GetName() == v1alpha1.ManifestName(store.DigestOf(name(0))) {
					r.usage.Set(imagesFor("other", "ns", name(0)))
				}
				return c.Delete(ctx, o, opts...)
			},
		})
		r.sweep(t.Context())
		if synctest.Wait(); len(again) != 1 || <-again != name(0) {
			t.Errorf("it is not asked again for %s", name(0))
		}
		resolved, _ := r.store.Count()
		if resolved > usage.MaxUnused.Each || resolved < usage.MaxUnused.Each/2 || r.store.Has(name(0)) || !r.store.Has(name(usage.MaxUnused.Each+19)) {
			t.Errorf("%d of %d are left, the oldest %v, the newest %v", resolved, usage.MaxUnused.Each+20, r.store.Has(name(0)), r.store.Has(name(usage.MaxUnused.Each+19)))
		}
	})
}

// A sweep notes for all references since when they are unused. What could not be removed is still
// known to be unused, and goes the next time.
func TestSweepNotesAndRetries(t *testing.T) {
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	tags := []string{"reg/x:1", "reg/y:1", "reg/z:1"}
	for i, tag := range tags {
		s.must(s.Resolved(t.Context(), tag, plain(hash(string(rune('a'+i)))), amd64))
		c := imagesFor("w", "ns", tag)
		r.usage.Set(c)
		r.usage.Unset(c.Workload)
	}
	begin := s.Clock.Now()
	s.Clock.SetTime(begin.Add(time.Minute))
	// The first write that fails ends as the others would.
	s.Fails, s.Writes = errors.New("etcdserver: no leader"), 0
	if r.sweep(t.Context()); s.Writes != 1 {
		t.Errorf("%d writes although the first failed", s.Writes)
	}
	s.Fails = nil
	r.sweep(t.Context())
	for _, h := range s.All() {
		if !h.Unused.Equal(begin) {
			t.Errorf("%s: noted is %v, want %v", h.Reference, h.Unused, begin)
		}
	}
	s.Clock.SetTime(begin.Add(r.options.KeepUnused))
	s.Fails = errors.New("etcdserver: no leader")
	r.sweep(t.Context())
	for _, tag := range tags {
		if got := r.usage.TenantOf(tag); !s.Has(tag) || !got.Since.Equal(begin) || len(got.Namespaces) != 1 {
			t.Errorf("%s could not be removed; known is %+v", tag, got)
		}
	}
	s.Fails = nil
	r.sweep(t.Context())
	s.expect(map[string]string{})
	if n := r.usage.CountIdle(); n != 0 {
		t.Errorf("remembered of what is gone: %d", n)
	}
}

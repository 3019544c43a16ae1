package controller

import (
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

func TestDue(t *testing.T) {
	const tag, other = "reg/x:1", "second/x:1"
	pinned := "reg/x@" + hash("f")
	index := &registry.Resolution{Digest: hash("f"), Index: true, Manifests: []v1alpha1.ImageManifestSpec{specOf(hash("a"), "linux/amd64")}}
	both := []string{"linux/amd64", "linux/arm64"}
	// Each step happens before the question.
	type step func(*Resolver, *storeTest)
	resolvedAs := func(reference string, found *registry.Resolution, platforms []string) step {
		return func(_ *Resolver, s *storeTest) { s.must(s.Resolved(s.t.Context(), reference, found, platforms)) }
	}
	later := func(d time.Duration) step {
		return func(_ *Resolver, s *storeTest) { s.Clock.SetTime(s.Clock.Now().Add(d)) }
	}
	nodesOf := func(platforms ...string) step {
		return func(r *Resolver, _ *storeTest) { addNodes(r, platforms...) }
	}
	refusedUntil := func(d time.Duration) step {
		return func(_ *Resolver, s *storeTest) {
			s.must(s.NotResolved(s.t.Context(), tag, store.Failure{Failures: 1, Retry: s.Clock.Now().Add(d), Reason: v1alpha1.ReasonNotFound}))
		}
	}
	tests := []struct {
		name      string
		steps     []step
		image     usage.Image
		want      task
		reference string
		after     time.Duration
	}{
		{"unknown", nil, one(tag), resolve, "", 0},
		{"fresh", []step{resolvedAs(tag, plain(hash("a")), amd64), later(time.Minute)}, one(tag), nothing, tag, 59 * time.Minute},
		{"old", []step{resolvedAs(tag, plain(hash("a")), amd64), later(time.Hour)}, one(tag), confirm, tag, 0},
		{"a digest is final", []step{resolvedAs(pinned, index, amd64), later(1000 * time.Hour)}, one(pinned), nothing, pinned, -1},
		{"a digest known from a tag", []step{resolvedAs(tag, index, amd64)}, one(pinned), adopt, pinned, 0},
		{"nodes of another platform", []step{resolvedAs(tag, index, amd64), nodesOf(both...)}, one(tag), resolve, tag, 0},
		{"a digest, nodes of another platform", []step{resolvedAs(pinned, index, amd64), nodesOf(both...)}, one(pinned), resolve, pinned, 0},
		{"looked through for both", []step{resolvedAs(tag, index, both), nodesOf(both...)}, one(tag), nothing, tag, time.Hour},
		{"no index, any platform", []step{resolvedAs(tag, plain(hash("a")), amd64), nodesOf(both...)}, one(tag), nothing, tag, time.Hour},
		{"refused", []step{refusedUntil(time.Minute), later(time.Second)}, one(tag), nothing, "", 59 * time.Second},
		{"refused long ago", []step{refusedUntil(time.Minute), later(time.Minute)}, one(tag), resolve, "", 0},
		{"known under the second name", []step{resolvedAs(other, plain(hash("a")), amd64)}, usage.NewImage([]string{tag, other}), nothing, other, time.Hour},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, s, _ := newTestResolver(t, &fakeRegistry{})
			for _, step := range test.steps {
				step(r, s)
			}
			next := due(r.snapshot(test.image))
			if next.task != test.want || next.reference != test.reference || next.after != test.after {
				t.Errorf("task %d about %q after %v, want %d about %q after %v", next.task, next.reference, next.after, test.want, test.reference, test.after)
			}
		})
	}
}

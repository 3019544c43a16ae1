package controller

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// The queues are given the number of requests that the work on an image took.
func TestRequestsAreCounted(t *testing.T) {
	server := registrytest.New(t)
	allowed, err := policy.New(policy.Config{Registries: []string{server.Host}, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := registry.New(registry.Config{Policy: allowed, RegistriesConf: server.Conf})
	if err != nil {
		t.Fatal(err)
	}
	work := func(questions int) int {
		return countRequests(func(ctx context.Context, _ *queue.Queue, key string) {
			for range questions {
				_, _ = client.Digest(ctx, key, nil)
			}
		})(t.Context(), nil, server.Host+"/x:1")
	}
	work(1) // and how the registry authenticates
	if none, one, many := work(0), work(1), work(10); none != 0 || one == 0 || many != 10*one {
		t.Errorf("%d requests for no question, %d for one, %d for ten", none, one, many)
	}
}

// An image that is known waits for no turn, however often others name it: what is not known yet would wait behind it.
func TestKnownTakesNoTurn(t *testing.T) {
	const tag = "reg/x:1"
	pinned := "reg/x@" + hash("a")
	r, s, _ := newTestResolver(t, &fakeRegistry{})
	keys := queued(t, r)
	for _, known := range []string{tag, pinned} {
		s.must(s.Resolved(t.Context(), known, plain(hash("a")), amd64))
	}
	for i := range 3 {
		c := imagesFor(fmt.Sprint("w-", i), "others", tag, pinned)
		r.usage.Set(c)
		r.askForNew(c, []usage.Image{one(tag), one(pinned)})
	}
	if r.ask(one(pinned)); r.queues.Len() != 1 {
		t.Errorf("%d images wait, want the tag, until it is confirmed", r.queues.Len())
	}
	r.usage.Set(imagesFor("w", "ns", "reg/new:1"))
	if r.ask(one("reg/new:1")); <-keys != "reg/new:1" {
		t.Error("an image that is known was worked on")
	}
}

package controller

import (
	"context"
	"net/netip"
	"testing"

	"github.com/layer-locality/layer-locality/internal/registrytest"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
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

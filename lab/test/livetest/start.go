package livetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// starting is held for reading while a cluster starts. The end of the process holds it for writing.
var starting sync.RWMutex

// started has the folders of the clusters that Start returned.
var started sync.Map

// Start starts a cluster in a test whose package has no cluster of its own from Main. The caller stops the cluster.
// A signal, or the time limit of "go test" when it is near, removes all these clusters, those that are starting
// included, and then ends the process: without it, they would be left behind.
func Start(ctx context.Context, config cluster.Config) (*cluster.Cluster, error) {
	end := removeAtEnd()
	starting.RLock()
	defer starting.RUnlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(end, func() { cancel(context.Cause(end)) })()
	c, err := cluster.Start(ctx, config)
	if err == nil {
		started.Store(c.Dir(), nil)
	}
	return c, err
}

// StartFor is Start in one test, which fails if the cluster does not start or is not removed cleanly when it ends.
func StartFor(t testing.TB, config cluster.Config) *cluster.Cluster {
	t.Helper()
	c, err := Start(t.Context(), config)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs of all components are in %s", c.LogDir())
		}
		ctx, cancel := context.WithTimeout(context.Background(), cleanup)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Errorf("the cluster was not removed cleanly: %v", err)
		}
	})
	return c
}

var removeAtEnd = sync.OnceValue(func() context.Context {
	end := untilEnd()
	context.AfterFunc(end, func() {
		starting.Lock()
		ctx, cancel := context.WithTimeout(context.Background(), cleanup)
		defer cancel()
		var group errgroup.Group
		started.Range(func(dir, _ any) bool {
			group.Go(func() error { return cluster.Clean(ctx, dir.(string)) })
			return true
		})
		fmt.Fprintf(os.Stderr, "stopped early: %v; clusters are removed\n", context.Cause(end))
		if err := group.Wait(); err != nil {
			fmt.Fprintf(os.Stderr, "a cluster was not removed cleanly: %v\n", err)
		}
		os.Exit(1)
	})
	return end
})

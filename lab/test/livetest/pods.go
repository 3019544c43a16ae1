package livetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// Use cordons all nodes except the named ones, until the end of the test.
func Use(t testing.TB, lab *scenario.Lab, names ...string) {
	t.Helper()
	cordon := func(ctx context.Context, node string, yes bool) error {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, yes)
		_, err := lab.Client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	for _, node := range lab.Cluster.Nodes() {
		if !slices.Contains(names, node.Name) {
			must(t, cordon(t.Context(), node.Name, true))
			t.Cleanup(func() {
				if err := cordon(context.Background(), node.Name, false); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Placement is an image and a node that should have it.
type Placement struct {
	Node      string
	Reference string
	Image     *images.Pushed
}

// Provide makes nodes pull images, four at a time, and waits until check accepts each.
func Provide(t testing.TB, lab *scenario.Lab, within time.Duration, what string, check func(context.Context, Placement) error, all ...Placement) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for _, p := range all {
		group.Go(func() error {
			_, err := Pull(ctx, lab.Cluster.Node(p.Node), p.Reference)
			return err
		})
	}
	must(t, group.Wait())
	Eventually(t, within, what, func(ctx context.Context) error {
		for _, p := range all {
			if err := check(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// Submit creates pods NAME-1 to NAME-n, and removes them at the end of the test.
func Submit(t testing.TB, lab *scenario.Lab, name string, n int, pod scenario.Pod) []string {
	t.Helper()
	names := scenario.Names(name, n)
	RemoveAtEnd(t, lab, names...)
	for _, pod.Name = range names {
		must(t, lab.Submit(t.Context(), pod))
	}
	return names
}

// WithdrawAtEnd deletes Deployments when the test ends.
func WithdrawAtEnd(t testing.TB, lab *scenario.Lab, names ...string) {
	t.Cleanup(func() {
		deployments := lab.Client.AppsV1().Deployments(metav1.NamespaceDefault)
		for _, name := range names {
			if err := deployments.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// RemoveAtEnd removes pods when the test ends, whatever their state.
func RemoveAtEnd(t testing.TB, lab *scenario.Lab, names ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := lab.Remove(ctx, names...); err != nil {
			t.Error(err)
		}
	})
}

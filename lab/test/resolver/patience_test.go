//go:build e2e

package resolver

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestPatience schedules pods of new images with the recommended profile, which waits a
// second for the resolver, where there never was one, and while it is alive, dead, back again,
// hung, and behind.
func TestPatience(t *testing.T) {
	livetest.Long(t, "TestWaitForManifest, and the unit tests of waiting")
	const pods, first = 16, 3
	rows := [][]string{{"layer-resolver", "scheduled after (median)", "longest", "held and answered", "held in vain", "held, median after the first three", "longest"}}
	// outcome is how it went for the pods that were held, by how that ended; how many in a row
	// waited in vain at most; and for how long most of those after the first three were held.
	type outcome struct {
		ended map[string]int
		row   int
		held  time.Duration
	}
	schedule := func(what string) (o outcome) {
		t.Helper()
		o.ended = map[string]int{}
		var took, held []time.Duration
		before, err := lab.Held(t.Context())
		must(t, err)
		for i, vain := 0, 0; i < pods; i++ {
			name := fmt.Sprintf("patience-%s-%d", what, i+1)
			took = append(took, latencies(t, name, scenario.Pod{Scheduler: scenario.Layers}, pushSmall(t, name+":v1").Reference)...)
			waited, err := lab.HeldFor(t.Context(), scenario.Names(name, 1)[0])
			must(t, err)
			held = append(held, waited)
			after, err := lab.Held(t.Context())
			must(t, err)
			if after["timeout"] > before["timeout"] {
				vain++
			} else {
				vain = 0
			}
			o.row = max(o.row, vain)
			for how := range after {
				o.ended[how] += after[how] - before[how]
			}
			before = after
		}
		slices.Sort(took)
		later := slices.Sorted(slices.Values(held[first:]))
		o.held = later[len(later)/2]
		rows = append(rows, []string{
			what, milliseconds(took[pods/2]), milliseconds(took[pods-1]), fmt.Sprint(o.ended["known"]), fmt.Sprint(o.ended["timeout"]),
			milliseconds(o.held), milliseconds(later[len(later)-1]),
		})
		return o
	}
	resolver := c.Addon(addons.LayerResolver)
	defer startResolver(t)

	must(t, resolver.Stop(t.Context()))
	must(t, lab.RemoveManifests(t.Context()))
	must(t, c.Scheduler().Restart(t.Context()))
	if o := schedule("absent"); o.ended["timeout"] != 0 || o.ended["known"] != 0 || o.held != 0 {
		t.Errorf("absent: %+v, want no pod that was held", o)
	}
	startResolver(t)
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: "patience", Image: pushSmall(t, "patience:v1").Reference, Scheduler: scenario.Layers}))
	removeAtEnd(t, "patience")
	must(t, lab.Ready(t.Context(), "patience"))
	must(t, lab.Known(t.Context(), c.Registry().Address+"/patience:v1"))

	if o := schedule("alive"); o.ended["known"] == 0 {
		t.Errorf("alive: no pod waited for an answer: %+v", o)
	}
	must(t, resolver.Kill(t.Context()))
	if o := schedule("dead"); o.ended["timeout"] != first || o.ended["known"] != 0 || o.held != 0 {
		t.Errorf("dead: %+v, want three pods that waited in vain", o)
	}
	startResolver(t)
	if o := schedule("back"); o.ended["known"] == 0 {
		t.Errorf("back: no pod waited for an answer: %+v", o)
	}

	must(t, syscall.Kill(resolver.PID(), syscall.SIGSTOP))
	o := schedule("hung")
	must(t, syscall.Kill(resolver.PID(), syscall.SIGCONT))
	if o.ended["timeout"] > first || o.ended["known"] != 0 || o.held != 0 {
		t.Errorf("hung: %+v, want at most three pods that waited in vain", o)
	}

	announceMany(t)
	// It may answer some in time: only three in a row end the waiting.
	if o := schedule("behind"); o.row > first {
		t.Errorf("behind: %+v, want at most three in a row in vain", o)
	}
	livetest.Table(t, rows...)
}

// announceMany makes Deployments without replicas that name 50,000 images which the registry
// does not have, until the end of the test. The resolver asks for 20 a second.
func announceMany(t *testing.T) {
	t.Helper()
	const deployments, images = 200, 250
	namespace, err := lab.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "behind-"}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Client.CoreV1().Namespaces().Delete(context.Background(), namespace.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for i := range deployments {
		var names []string
		for j := range images {
			names = append(names, fmt.Sprintf("%s/behind/%d-%d:v1", c.Registry().Address, i, j))
		}
		d := scenario.Deployment(fmt.Sprint("behind-", i), 0, scenario.Pod{Image: names[0]}, names[1:]...)
		d.Namespace = namespace.Name
		_, err := lab.Client.AppsV1().Deployments(namespace.Name).Create(t.Context(), d, metav1.CreateOptions{})
		must(t, err)
	}
}

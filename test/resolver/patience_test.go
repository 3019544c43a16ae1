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

	"github.com/layer-locality/layer-locality/internal/cluster/addons"
	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// TestPatience schedules pods of new images with the recommended profile, which waits a
// second for the resolver, while that is alive, dead, back again, hung, and behind.
func TestPatience(t *testing.T) {
	const pods = 16
	rows := [][]string{{"layer-resolver", "median", "longest", "held and answered", "held in vain"}}
	// schedule returns how many pods were held, by how that ended, and how many of them in a
	// row waited in vain at most.
	schedule := func(what string) (ended map[string]int, row int) {
		t.Helper()
		ended = map[string]int{}
		var took []time.Duration
		before, err := lab.Held(t.Context())
		must(t, err)
		for i, vain := 0, 0; i < pods; i++ {
			name := fmt.Sprintf("patience-%s-%d", what, i+1)
			took = append(took, latencies(t, name, scenario.Pod{Scheduler: scenario.Layers}, pushSmall(t, name+":v1").Reference)...)
			after, err := lab.Held(t.Context())
			must(t, err)
			if after["timeout"] > before["timeout"] {
				vain++
			} else {
				vain = 0
			}
			row = max(row, vain)
			for how := range after {
				ended[how] += after[how] - before[how]
			}
			before = after
		}
		slices.Sort(took)
		rows = append(rows, []string{what, milliseconds(took[pods/2]), milliseconds(took[pods-1]), fmt.Sprint(ended["known"]), fmt.Sprint(ended["timeout"])})
		return ended, row
	}
	// The metric has a value once a pod was held.
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: "patience", Image: pushSmall(t, "patience:v1").Reference, Scheduler: scenario.Layers}))
	removeAtEnd(t, "patience")
	must(t, lab.Ready(t.Context(), "patience"))

	if ended, _ := schedule("alive"); ended["known"] == 0 {
		t.Errorf("alive: no pod waited for an answer: %v", ended)
	}
	must(t, c.Addon(addons.LayerResolver).Kill(t.Context()))
	defer startResolver(t)
	if ended, _ := schedule("dead"); ended["timeout"] != 3 || ended["known"] != 0 {
		t.Errorf("dead: %v, want three pods that waited in vain", ended)
	}
	startResolver(t)
	if ended, _ := schedule("back"); ended["known"] == 0 {
		t.Errorf("back: no pod waited for an answer: %v", ended)
	}

	resolver := c.Addon(addons.LayerResolver)
	must(t, syscall.Kill(resolver.PID(), syscall.SIGSTOP))
	ended, _ := schedule("hung")
	must(t, syscall.Kill(resolver.PID(), syscall.SIGCONT))
	if ended["timeout"] > 3 || ended["known"] != 0 {
		t.Errorf("hung: %v, want at most three pods that waited in vain", ended)
	}

	announceMany(t)
	// It may answer some in time: only three in a row end the waiting.
	if ended, row := schedule("behind"); row > 3 {
		t.Errorf("behind: %v, %d of them in vain in a row, want at most three", ended, row)
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

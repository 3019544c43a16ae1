//go:build e2e

package resolver

import (
	"context"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/deploy/resolver"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	// patient is the recommended profile with waitForManifest.
	patient = "layer-locality-5s"
	wait    = 5 * time.Second

	bandwidth = 100_000_000
	baseBytes = 60_000_000
	ownBytes  = 2_000_000
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

func TestMain(m *testing.M) {
	if os.Getenv(listenerVariable) != "" {
		runListener()
	}
	schedulers := scenario.Schedulers(scenario.Recommended(patient, map[string]any{"waitForManifest": wait.String()}))
	schedulers.Flavour = cluster.Patched
	config := cluster.Config{
		Name: livetest.ClusterName("resolver"), Nodes: 3, Bandwidth: bandwidth, Flavour: livetest.Flavour(),
		Scheduler: schedulers,
		Addons:    []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*", "--pull-secrets", "--publish-private", "-v=1"}})},
		Kubelet: cluster.Component{Config: map[string]any{
			// Ten times as often as usual, so that tests wait less.
			"nodeStatusUpdateFrequency": "1s",
			"nodeStatusMaxImages":       -1,
		}},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
		// Secrets only of one namespace.
		for _, manifest := range [][]byte{resolver.PullSecretsRole, resolver.PullSecretsBinding} {
			if err := c.Apply(context.Background(), metav1.NamespaceDefault, manifest); err != nil {
				panic(err)
			}
		}
	}))
}

var must = testkit.Must

// base returns a layer that only the images of one test share.
func base(name string) images.Layer { return images.Layer{Name: name + "-base", Size: baseBytes} }

// push pushes n images NAME-1:v1, ... on the base.
func push(t *testing.T, name string, n int, base images.Layer) []*images.Pushed {
	t.Helper()
	all := make([]*images.Pushed, n)
	for i, name := range scenario.Names(name, n) {
		var err error
		all[i], err = scenario.PushOnBase(t.Context(), c, name+":v1", base, ownBytes)
		must(t, err)
	}
	return all
}

func references(all []*images.Pushed) []string {
	names := make([]string, len(all))
	for i, image := range all {
		names[i] = image.Reference
	}
	return names
}

// hold makes the pod's node pull its image; see Lab.Hold.
func hold(t *testing.T, pod scenario.Pod) {
	t.Helper()
	removeAtEnd(t, pod.Name)
	livetest.WithdrawAtEnd(t, lab, pod.Name)
	must(t, lab.Hold(t.Context(), pod, baseBytes))
}

// holds pushes an image with the base and makes a node pull it.
func holds(t *testing.T, node string, base images.Layer) *images.Pushed {
	t.Helper()
	name := base.Name + "-holder"
	image, err := scenario.PushOnBase(t.Context(), c, name+":v1", base, ownBytes)
	must(t, err)
	hold(t, scenario.Pod{Name: name, Image: image.Reference, Node: node})
	return image
}

// announce makes a Deployment without replicas until the end of the test.
func announce(t *testing.T, pod scenario.Pod, more ...string) {
	t.Helper()
	livetest.WithdrawAtEnd(t, lab, pod.Name)
	must(t, lab.Announce(t.Context(), pod, more...))
}

// removeAtEnd removes pods when the test ends, whatever their state.
func removeAtEnd(t *testing.T, names ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := lab.Drop(ctx, names...); err != nil {
			t.Error(err)
		}
	})
}

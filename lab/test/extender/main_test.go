//go:build e2e

package extender

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	deployed "github.com/layer-locality/layer-locality/deploy/agent"
	"github.com/layer-locality/layer-locality/internal/auditlog"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	bandwidth = 100_000_000
	// maxScore and weight are those that deploy/extender recommends.
	maxScore, weight = 40, 1
	// bound is how many pods may wait on a node for the same layers (maxWaitingPods).
	bound = 15
	// agent is the agent under test.
	agent = "layers"
	// extenderUser is the name of layer-extender at the apiserver.
	extenderUser = "system:serviceaccount:kube-system:" + addons.LayerExtender
	// plain is the kube-scheduler without an extender.
	plain     = "plain-scheduler"
	plainPort = "10269"
	// settled is the time after which a Node must report what its CRI-O has.
	settled = 75 * time.Second
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

func TestMain(m *testing.M) {
	// As many pods as lab/test/scheduler lets wait on a node, so that a burst has room for one
	// node more.
	folder, err := os.MkdirTemp("", "layer-extender")
	if err != nil {
		panic(err)
	}
	plugins := filepath.Join(folder, "plugins.yaml")
	if err := os.WriteFile(plugins, fmt.Appendf(nil, "pluginConfig: [{name: LayerLocality, args: {maxWaitingPods: %d}}]", bound), 0o600); err != nil {
		panic(err)
	}
	extender := addons.Extender(cluster.Component{Args: []string{fmt.Sprintf("--max-score=%d", maxScore), "--plugin-config=" + plugins, "-v=2"}})
	extender.Manifests += "\n---\n" + string(deployed.CRD) // as if layer-agent were installed
	config := cluster.Config{
		Name: livetest.ClusterName("extender"), Nodes: 4, Bandwidth: bandwidth, Flavour: livetest.Flavour(),
		Scheduler: extended(nil),
		Addons: []cluster.Addon{
			extender,
			addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}}),
			plainScheduler(),
		},
		Kubelet: cluster.Component{Config: map[string]any{
			// Ten times as often as usual, so that tests wait less.
			"nodeStatusUpdateFrequency": "1s",
			"nodeStatusMaxImages":       -1,
		}},
		AuditPolicy: auditlog.RequestsOf(extenderUser),
	}
	code := livetest.Main(m, config, func(started *cluster.Cluster) {
		c = started
		var err error
		if lab, err = scenario.NewLab(c); err != nil {
			panic(err)
		}
		lab.RateWith(addons.ExtenderURL(c), agent)
	})
	if err := os.RemoveAll(folder); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// extended configures a stock kube-scheduler that asks layer-extender. Further fields
// replace those of the entry of extenders. It waits 5 s for an answer: what is shipped waits 0.2 s,
// within which a busy machine does not answer always, and then a pod has no scores. TestFaults has that.
func extended(further map[string]any) cluster.Component {
	fields := map[string]any{"httpTimeout": "5s"}
	maps.Copy(fields, further)
	return cluster.Component{
		Flavour: cluster.Stock,
		Args:    []string{scenario.LogScores},
		Config: map[string]any{
			"profiles": []map[string]any{{
				"schedulerName": scenario.Layers,
				"plugins":       map[string]any{"multiPoint": map[string]any{"disabled": []map[string]any{{"name": "ImageLocality"}}}},
			}},
			"extenders": []map[string]any{addons.ExtenderEntry(agent, weight, fields)},
			// More pods a second than by default, so that tests wait less.
			"clientConnection": map[string]any{"qps": 500, "burst": 1000},
		},
	}
}

// plainScheduler is kube-scheduler as it is, as the default scheduler. It has the identity
// of a cluster's scheduler.
func plainScheduler() cluster.Addon {
	binary, err := filepath.Abs("../../../_build/bin/stock/kube-scheduler")
	if err != nil {
		panic(err)
	}
	return cluster.Addon{
		Name:     plain,
		Settings: cluster.Component{Binary: binary},
		Args: []string{
			"--kubeconfig=$(KUBECONFIG)", "--authentication-kubeconfig=$(KUBECONFIG)", "--authorization-kubeconfig=$(KUBECONFIG)",
			"--leader-elect=false", "--bind-address=$(ADDRESS)", "--secure-port=" + plainPort,
			"--tls-cert-file=$(PKI)/control.crt", "--tls-private-key-file=$(PKI)/control.key",
		},
		Health: "https://$(ADDRESS):" + plainPort + "/healthz",
		User:   "system:kube-scheduler",
	}
}

// stock reports whether nodes and control plane are stock, too.
func stock() bool { return livetest.Flavour() == cluster.Stock }

var must = testkit.Must

// withScheduler restarts the scheduler with other settings, until the end of the test, or
// until the result is called.
func withScheduler(t *testing.T, other cluster.Component) (restore func()) {
	t.Helper()
	restart := func(ctx context.Context, settings cluster.Component) error {
		return c.Scheduler().Restart(ctx, func(s *cluster.Component) { *s = settings })
	}
	must(t, restart(t.Context(), other))
	restore = sync.OnceFunc(func() {
		if err := restart(context.Background(), extended(nil)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// withPlugin returns the settings of our kube-scheduler, which asks no extender.
func withPlugin(args map[string]any) cluster.Component {
	settings := scenario.Schedulers()
	settings.Flavour, settings.Args = cluster.Patched, []string{scenario.LogScores}
	settings.Config["profiles"] = []map[string]any{scenario.Recommended(scenario.Layers, args)}
	return settings
}

// use cordons all nodes except the named ones; see livetest.Use.
func use(t *testing.T, names ...string) {
	t.Helper()
	livetest.Use(t, lab, names...)
}

// placement is an image and a node that should have it.
type placement = livetest.Placement

// known returns an error unless layer-extender counts all of the image as present on the node. A
// stock node names it, and its layers are those of an ImageManifest.
func known(ctx context.Context, p placement) error {
	if stock() {
		return lab.Joined(ctx, p.Reference, p.Node)
	}
	list, err := nodeimages.Get(ctx, lab.Client, p.Node)
	if err != nil {
		return err
	}
	if _, ok := livetest.FindNode(list, p.Reference); !ok {
		return fmt.Errorf("node %s does not state %s", p.Node, p.Reference)
	}
	ratings, err := lab.Rate(ctx, p.Reference)
	if err != nil {
		return err
	}
	if rating, _ := ratings.Node(p.Node); rating.TotalBytes == 0 || rating.MissingBytes > 0 {
		return fmt.Errorf("what is known of %s on %s: %+v", p.Reference, p.Node, rating)
	}
	return nil
}

// submit creates pods NAME-1 to NAME-n; see livetest.Submit.
func submit(t *testing.T, name string, n int, pod scenario.Pod) []string {
	t.Helper()
	return livetest.Submit(t, lab, name, n, pod)
}

// removeAtEnd removes pods when the test ends, whatever their state.
func removeAtEnd(t *testing.T, names ...string) { livetest.RemoveAtEnd(t, lab, names...) }

// answered returns how many requests layer-extender answered well so far.
func answered(t *testing.T) int {
	t.Helper()
	codes, err := lab.MetricOf(t.Context(), addons.ExtenderURL(c), "layer_extender_requests_total", "code")
	must(t, err)
	return codes["200"]
}

// expectedPods prints what became of the pods that layer-extender expected.
func expectedPods(t *testing.T) {
	t.Helper()
	ended, err := lab.MetricOf(t.Context(), addons.ExtenderURL(c), "layer_extender_expected_pods_total", "ended")
	if err != nil {
		t.Log(err)
		return
	}
	t.Logf("pods that were expected on their best node, so far, by where they went: %v", ended)
}

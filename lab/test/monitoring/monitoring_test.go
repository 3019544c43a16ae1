//go:build e2e

package monitoring

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/monitoring"
	"github.com/layer-locality/layer-locality/lab/dashboards"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestPanels: after some minutes of pods, each query of each panel and of each variable has data, and
// docs/monitoring.md has the metrics that are served, and no others.
func TestPanels(t *testing.T) {
	pods := 3 * time.Minute
	if os.Getenv("FULL") != "" {
		pods = 10 * time.Minute
	}
	all, err := dashboards.Read(root)
	must(t, err)
	queries, err := dashboards.Queries(all)
	must(t, err)
	limited := startRegistry(t)
	must(t, lab.Announce(t.Context(), scenario.Pod{Name: "limited", Image: limited.address + "/panels-0:v1"}))
	load(t, "panels", fresh("panels"))
	select {
	case <-t.Context().Done():
	case <-time.After(pods):
	}
	// Of some pods only, the scheduler measures how long plugins take.
	livetest.Eventually(t, 2*time.Minute, fmt.Sprintf("all %d queries have data", len(queries)), func(ctx context.Context) error {
		var without []string
		for _, q := range queries {
			if strings.Contains(q.Expr, "layerlocality_prefetch_") {
				continue // it is not installed here
			}
			samples, err := server.Query(ctx, dashboards.Filled(q.Expr, "1m"))
			if err != nil {
				return err
			}
			if len(samples) == 0 {
				without = append(without, q.Where+": "+q.Expr)
			}
		}
		// Of counters, 0 is no data: pods asked for bytes, and some were saved.
		for _, expr := range []string{
			`sum(scheduler_layerlocality_requested_bytes_total)`,
			`sum(scheduler_layerlocality_missing_bytes_total{of="mean"}) - sum(scheduler_layerlocality_missing_bytes_total{of="chosen"})`,
			`sum(scheduler_layerlocality_images_total{known="layers"})`, `sum(layerlocality_agent_writes_total)`, `sum(layerlocality_resolver_lookups_total)`,
		} {
			if samples, err := server.Query(ctx, expr); err != nil || len(samples) != 1 || samples[0].Value <= 0 {
				without = append(without, fmt.Sprintf("%s is %v, %v", expr, samples, err))
			}
		}
		if len(without) > 0 {
			return fmt.Errorf("without data:\n  %s", strings.Join(without, "\n  "))
		}
		return nil
	})
	bounds, err := monitoring.Bounds(root)
	must(t, err)
	for _, prefix := range []string{"scheduler_layerlocality_", "layerlocality_resolver_", "layerlocality_agent_"} {
		documented, err := monitoring.DocumentedLabels(root, prefix)
		must(t, err)
		served, err := server.Metrics(t.Context(), prefix)
		must(t, err)
		if !maps.EqualFunc(served, documented, slices.Equal) || len(served) == 0 {
			t.Errorf("docs/monitoring.md has %q\nserved are %q", documented, served)
		}
		for metric, labels := range documented {
			samples, err := server.Query(t.Context(), fmt.Sprintf(`{__name__=~"%s(_count)?"}`, metric))
			must(t, err)
			for _, label := range labels {
				values := map[string]bool{}
				for _, sample := range samples {
					values[sample.Labels[label]] = true
				}
				if bound := bounds[metric][label]; !bound.Allows(values) {
					t.Errorf("%s, label %s: %v, and docs/monitoring.md allows %+v", metric, label, values, bound)
				}
			}
		}
	}
	// By its name the leader is known in rules_test.yaml, too.
	leaders, err := server.Query(t.Context(), `leader_election_master_status{job="layer-locality-scheduler"}`)
	must(t, err)
	tests, err := os.ReadFile(filepath.Join(root, monitoring.Folder, "rules_test.yaml"))
	must(t, err)
	if len(leaders) != 1 || leaders[0].Value != 1 || !strings.Contains(string(tests), fmt.Sprintf("name=%q", leaders[0].Labels["name"])) {
		t.Errorf("leaders: %+v", leaders)
	}
}

// firing reports whether an alert fires with these labels, among others.
func firing(ctx context.Context, alert string, labels map[string]string) (bool, error) {
	alerts, err := server.Firing(ctx)
	return slices.ContainsFunc(alerts, func(of map[string]string) bool {
		for name, value := range labels {
			if of[name] != value {
				return false
			}
		}
		return of["alertname"] == alert
	}), err
}

func expect(t *testing.T, alert string, labels map[string]string, fires bool) {
	t.Helper()
	what := "ends"
	if fires {
		what = "fires"
	}
	livetest.Eventually(t, 3*time.Minute, fmt.Sprint(alert, " ", what), func(ctx context.Context) error {
		is, err := firing(ctx, alert, labels)
		if err == nil && is != fires {
			err = fmt.Errorf("with %v, it fires: %t", labels, is)
		}
		return err
	})
}

func fires(t *testing.T, alert string, labels map[string]string) {
	t.Helper()
	expect(t, alert, labels, true)
}

func ends(t *testing.T, alert string, labels map[string]string) {
	t.Helper()
	expect(t, alert, labels, false)
}

// TestAlerts makes the cause of each alert but NodeLayersCut, which takes more than a thousand images.
// Each fires, and ends when the cause is taken away.
func TestAlerts(t *testing.T) {
	livetest.Long(t, "Prometheus' own tests of the rules")
	livetest.Eventually(t, 2*time.Minute, "no alert fires", func(ctx context.Context) error {
		alerts, err := server.Firing(ctx)
		if err == nil && len(alerts) > 0 {
			err = fmt.Errorf("%v", alerts)
		}
		return err
	})
	for _, part := range []struct {
		name string
		test func(t *testing.T)
	}{
		{"agent stopped", testStopped}, {"agent gone", testGone}, {"agent without rights", testWithoutRights},
		{"registry", testRegistry}, {"scheduler without its lease", testNoLeader}, {"scheduler gone", testNoScheduler},
	} {
		if !t.Run(part.name, part.test) {
			return // the next ones would start from something else
		}
	}
}

// signal sends a signal to the process of an agent that writes, which is the one that is scraped.
func signal(t *testing.T, node, signal string) {
	t.Helper()
	// The brackets keep the pattern from finding itself.
	_, err := c.Node(node).Exec(t.Context(), "pkill", "-"+signal, "-f", "[l]ayer-agent publish")
	must(t, err)
}

func testStopped(t *testing.T) {
	labels := map[string]string{"instance": "n2"}
	signal(t, "n2", "STOP")
	fires(t, "LayerAgentSilent", labels)
	signal(t, "n2", "CONT")
	ends(t, "LayerAgentSilent", labels)
}

// An agent is gone for good: first its NodeLayers is stale, then it is deleted, as troubleshooting.md
// has it.
func testGone(t *testing.T) {
	must(t, label(t.Context(), "n3", false))
	fires(t, "NodeLayersStale", nil)
	resource := v1alpha1.NodeLayersResource
	must(t, lab.Client.Discovery().RESTClient().Delete().AbsPath("/apis", resource.Group, resource.Version, resource.Resource, "n3").Do(t.Context()).Error())
	ends(t, "NodeLayersStale", nil)
	fires(t, "LayerAgentMissing", nil)
	must(t, label(t.Context(), "n3", true))
	ends(t, "LayerAgentMissing", nil)
}

func testWithoutRights(t *testing.T) {
	bindings := lab.Client.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(t.Context(), scenario.Agent, metav1.GetOptions{})
	must(t, err)
	must(t, bindings.Delete(t.Context(), scenario.Agent, metav1.DeleteOptions{}))
	for _, node := range c.Nodes() {
		fires(t, "LayerAgentWritesFailing", map[string]string{"instance": node.Name, "reason": "Forbidden"})
	}
	binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}
	_, err = bindings.Create(t.Context(), binding, metav1.CreateOptions{})
	must(t, err)
	ends(t, "LayerAgentWritesFailing", nil)
	ends(t, "NodeLayersStale", nil)
}

// A registry fails, then it does not answer. In between it is well, as for layer-resolver's answers
// the scheduler holds more pods.
func testRegistry(t *testing.T) {
	registry := startRegistry(t)
	here := map[string]string{"registry": registry.address}
	registry.answers(ill)
	stop := load(t, "ill", func(_ context.Context, i int) (string, error) {
		return fmt.Sprintf("%s/ill-%d:v1", registry.address, i), nil
	})
	fires(t, "LayerRegistryFailing", here)
	fires(t, "MostImagesUnknown", nil)
	registry.answers(well)
	stop()
	stop = load(t, "well", fresh("well"))
	ends(t, "LayerRegistryFailing", here)
	ends(t, "MostImagesUnknown", nil)
	stop()

	registry.answers(silent)
	cpu, err := lab.FillingCPU(t.Context())
	must(t, err)
	var pods []string
	for _, image := range scenario.Names("silent", 3) {
		for _, name := range scenario.Names(image, 6) {
			// Larger than a node: nothing is pulled in vain.
			must(t, lab.Submit(t.Context(), scenario.Pod{Name: name, Image: registry.address + "/" + image + ":v1", Scheduler: scenario.Layers, MilliCPU: 2 * cpu}))
			pods = append(pods, name)
		}
	}
	fires(t, "HeldPodsTimingOut", nil)
	registry.answers(well)
	must(t, lab.Drop(t.Context(), pods...))
	ends(t, "HeldPodsTimingOut", nil)
}

// The scheduler ends when it can no longer renew its lease, and the next one does not get it.
func testNoLeader(t *testing.T) {
	bindings := lab.Client.RbacV1().RoleBindings(scenario.AgentNamespace)
	binding, err := bindings.Get(t.Context(), scenario.SecondScheduler+"-leader-election", metav1.GetOptions{})
	must(t, err)
	must(t, bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
	fires(t, "LayerSchedulerNoLeader", nil)
	binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}
	_, err = bindings.Create(t.Context(), binding, metav1.CreateOptions{})
	must(t, err)
	ends(t, "LayerSchedulerNoLeader", nil)
}

func testNoScheduler(t *testing.T) {
	scale := func(replicas int32) {
		t.Helper()
		_, err := lab.Client.AppsV1().Deployments(scenario.AgentNamespace).UpdateScale(t.Context(), scenario.SecondScheduler,
			&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.AgentNamespace, Name: scenario.SecondScheduler}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
		must(t, err)
	}
	scale(0)
	fires(t, "LayerSchedulerMissing", nil)
	scale(1)
	ends(t, "LayerSchedulerMissing", nil)
}

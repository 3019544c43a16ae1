//go:build e2e

package monitoring

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/internal/dashboards"
	"github.com/layer-locality/layer-locality/internal/monitoring"
	"github.com/layer-locality/layer-locality/internal/scenario"
	"github.com/layer-locality/layer-locality/test/livetest"
)

// full tells whether the long parts run.
func full() bool { return os.Getenv("FULL") != "" }

// TestPanels: after some minutes of pods, each query of each panel and of each variable has data, and
// docs/monitoring.md has the metrics that are served, and no others.
func TestPanels(t *testing.T) {
	pods := time.Minute
	if full() {
		pods = 10 * time.Minute
	}
	all, err := dashboards.Read(root)
	must(t, err)
	queries, err := dashboards.Queries(all)
	must(t, err)
	must(t, lab.Announce(t.Context(), scenario.Pod{Name: "limited", Image: startRegistry(t) + "/load-0:v1"}))
	load(t)
	select {
	case <-t.Context().Done():
	case <-time.After(pods):
	}
	// Of some pods only, the scheduler measures how long plugins take.
	livetest.Eventually(t, 2*time.Minute, fmt.Sprintf("all %d queries have data", len(queries)), func(ctx context.Context) error {
		var without []string
		for _, q := range queries {
			samples, err := server.Query(ctx, dashboards.Filled(q.Expr, "1m"))
			if err != nil {
				return err
			}
			if len(samples) == 0 {
				without = append(without, q.Where+": "+q.Expr)
			}
		}
		if len(without) > 0 {
			return fmt.Errorf("without data:\n  %s", strings.Join(without, "\n  "))
		}
		return nil
	})
	for _, prefix := range []string{"scheduler_layerlocality_", "layerlocality_resolver_", "layerlocality_agent_"} {
		documented, err := monitoring.Documented(root, prefix)
		must(t, err)
		served, err := server.Metrics(t.Context(), prefix)
		must(t, err)
		if !slices.Equal(served, documented) {
			t.Errorf("docs/monitoring.md has %q\nserved are %q", documented, served)
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

package qosaware

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// Workloads of tenants are at most 500 series, of however many there are.
func TestWorkloadsAreFew(t *testing.T) {
	args := &config.QosAwareArgs{MeasureFrom: config.MeasureFromBound, AcceptablePreemptionOverhead: 1}
	b := ledger.New(ledger.Config{Args: args, Clock: clock.RealClock{}, Owners: func(string, metav1.OwnerReference) (ledger.Owner, bool) { return ledger.Owner{}, true }})
	const workloads = 20_000
	for i := range workloads {
		if err := b.Observe(queued(fmt.Sprint("pod-", i), 0, 0, "0.5").Pod); err != nil {
			t.Fatal(err)
		}
	}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(newCollector(b))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, family := range families {
		series[family.GetName()] = len(family.Metric)
	}
	if n := len(b.Rows(false)); n != workloads || series["scheduler_qosaware_workload_service_ratio"] != maxWorkloads || series["scheduler_qosaware_workloads"] != 3 || series["scheduler_qosaware_places"] != 3 || series["scheduler_qosaware_seconds_total"] != 4 {
		t.Errorf("%d workloads, series %v", n, series)
	}
}

// The page of all metrics has those of this plugin. They are taken from the source, because some are
// served only once there are workloads.
func TestMetricsAreDocumented(t *testing.T) {
	names := func(path, pattern string) (found []string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		slices.Sort(found)
		return found
	}
	made := names("metrics.go", `(?:counter|desc)\("([a-z_]+)",`)
	documented := names(filepath.Join("..", "..", "docs", "monitoring.md"), "(?m)^\\| `scheduler_qosaware_([a-z_]+)` \\|")
	if !slices.Equal(made, documented) || len(made) != 6 {
		t.Errorf("metrics.go has %q, docs/monitoring.md %q", made, documented)
	}
}

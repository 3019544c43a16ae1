package qosaware

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// maxWorkloads is of how many workloads there are metrics of their own: a tenant could make
// any number of them.
const maxWorkloads = 500

// pluginMetrics are in the scheduler's own registry.
type pluginMetrics struct {
	preemptions *metrics.CounterVec
	writes      *metrics.CounterVec
}

var (
	processMetrics *pluginMetrics
	registerOnce   sync.Once
)

// registerMetrics returns the metrics of the process. Workloads are those of the first
// caller.
func registerMetrics(b *ledger.Ledger) *pluginMetrics {
	registerOnce.Do(func() {
		counter := func(name, help string) *metrics.CounterOpts {
			return &metrics.CounterOpts{Subsystem: "scheduler", Name: "qosaware_" + name, Help: help, StabilityLevel: metrics.ALPHA}
		}
		m := &pluginMetrics{
			preemptions: metrics.NewCounterVec(counter("preemptions_total",
				"Pods that were preempted, by why it was allowed: a lower priority, as upstream (priority), or, for an SLO: it gained nothing by running (in-vain), its own SLO was not in danger (secure), the other's SLO is larger (larger-slo), preemptions had cost it little (overhead), its own SLO is not admitted (refused), or the other one had waited for long (turn)."),
				[]string{"reason"}),
			writes: metrics.NewCounterVec(counter("state_writes_total",
				"Writes and reads of the saved state: it was saved (success), could not be saved (error), or could not be used when it was read, at all (unusable) or for some workloads (incomplete)."),
				[]string{"result"}),
		}
		legacyregistry.MustRegister(m.preemptions, m.writes)
		for _, why := range reasons {
			m.preemptions.WithLabelValues(string(why))
		}
		for _, result := range []string{"success", "error", "unusable", "incomplete"} {
			m.writes.WithLabelValues(result)
		}
		legacyregistry.CustomMustRegister(newCollector(b))
		processMetrics = m
	})
	return processMetrics
}

// collector reads the Ledger when metrics are collected.
type collector struct {
	metrics.BaseStableCollector
	ledger                     *ledger.Ledger
	workloads, seconds, single *metrics.Desc
	places                     *metrics.Desc
}

func newCollector(b *ledger.Ledger) *collector {
	desc := func(name, help string, labels ...string) *metrics.Desc {
		return metrics.NewDesc(metrics.BuildFQName("", "scheduler", "qosaware_"+name), help, labels, nil, metrics.ALPHA, "")
	}
	return &collector{
		ledger:    b,
		workloads: desc("workloads", "Workloads with an SLO, by whether they are at or above it (met), below (missed), or served as if they had none because there is not room for all (refused).", "slo"),
		places:    desc("places", "Places: what pods with an SLO were seen to have at once (seen), and the sums of SLO x pods of all workloads (stated) and of those whose SLO is admitted (admitted).", "of"),
		seconds:   desc("seconds_total", "Seconds of pods with an SLO, by how they were spent; a pod's are added when it is gone.", "state"),
		single:    desc("workload_service_ratio", "The share of its time in which a workload ran, of at most 500 workloads.", "namespace", "kind", "workload"),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- c.workloads
	ch <- c.places
	ch <- c.seconds
	ch <- c.single
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	met, missed, refused := 0, 0, 0
	seen := map[[3]string]bool{} // an object that was made again has the same name
	for _, row := range c.ledger.Rows(false) {
		switch {
		case row.Refused:
			refused++
		case row.Sums.Service() >= row.Terms.SLO:
			met++
		default:
			missed++
		}
		labels := [3]string{row.Workload.Namespace, row.Workload.Kind, row.Workload.Name}
		if len(seen) < maxWorkloads && !seen[labels] {
			seen[labels] = true
			ch <- metrics.NewLazyConstMetric(c.single, metrics.GaugeValue, row.Sums.Service(), labels[:]...)
		}
	}
	ch <- metrics.NewLazyConstMetric(c.workloads, metrics.GaugeValue, float64(met), "met")
	ch <- metrics.NewLazyConstMetric(c.workloads, metrics.GaugeValue, float64(missed), "missed")
	ch <- metrics.NewLazyConstMetric(c.workloads, metrics.GaugeValue, float64(refused), "refused")
	a := c.ledger.Admission()
	for of, places := range map[string]float64{"seen": a.Places, "stated": a.Stated, "admitted": a.Admitted} {
		ch <- metrics.NewLazyConstMetric(c.places, metrics.GaugeValue, places, of)
	}
	for state, seconds := range byState(c.ledger.Seconds()) {
		ch <- metrics.NewLazyConstMetric(c.seconds, metrics.CounterValue, seconds, state)
	}
}

func byState(s account.Sums) map[string]float64 {
	return map[string]float64{"running": s.Running, "lost": s.Lost, "waiting": s.Waiting, "binding": s.Binding}
}

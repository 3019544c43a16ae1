package monitoring

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Registered is a prometheus.Registerer for tests. It has the metrics that were registered, whether they
// have values yet or not.
type Registered struct {
	// labels has the names of labels, sorted, by metric.
	labels map[string][]string
	// free are labels, as METRIC LABEL, that may have any value.
	free []string
	// series adds a series to a metric.
	series     map[string]func(labels prometheus.Labels)
	collectors map[string]prometheus.Collector
}

// descriptor is what prometheus.Desc, which has no accessors, writes.
var descriptor = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// label is one of a list. A variable label with a constraint is in parentheses.
var label = regexp.MustCompile(`(c\()?([a-z_]+)\)?(="[^"]*")?(?:,|$)`)

// Register implements prometheus.Registerer.
func (r *Registered) Register(collector prometheus.Collector) error {
	if r.labels == nil {
		r.labels, r.series, r.collectors = map[string][]string{}, map[string]func(prometheus.Labels){}, map[string]prometheus.Collector{}
	}
	descriptors := make(chan *prometheus.Desc)
	go func() {
		collector.Describe(descriptors)
		close(descriptors)
	}()
	for d := range descriptors {
		parts := descriptor.FindStringSubmatch(d.String())
		if parts == nil {
			panic("client_golang writes descriptors in another way: " + d.String())
		}
		name, labels := parts[1], []string{}
		for _, list := range parts[2:] {
			for _, found := range label.FindAllStringSubmatch(list, -1) {
				labels = append(labels, found[2])
				if found[1] == "" && found[3] == "" {
					r.free = append(r.free, name+" "+found[2])
				}
			}
		}
		slices.Sort(labels)
		r.labels[name], r.collectors[name] = labels, collector
		switch vector := collector.(type) {
		case *prometheus.CounterVec:
			r.series[name] = func(labels prometheus.Labels) { vector.With(labels) }
		case *prometheus.GaugeVec:
			r.series[name] = func(labels prometheus.Labels) { vector.With(labels) }
		case *prometheus.HistogramVec:
			r.series[name] = func(labels prometheus.Labels) { vector.With(labels) }
		}
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *Registered) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		_ = r.Register(c) // panics by itself
	}
}

// Unregister implements prometheus.Registerer.
func (r *Registered) Unregister(prometheus.Collector) bool { return false }

// Check compares the metrics with those of docs/monitoring.md whose names begin with a prefix.
func (r *Registered) Check(root, prefix string) error {
	documented, err := DocumentedLabels(root, prefix)
	if err == nil && (len(r.labels) == 0 || !maps.EqualFunc(r.labels, documented, slices.Equal)) {
		err = fmt.Errorf("registered are %q\ndocs/monitoring.md has %q", r.labels, documented)
	}
	return err
}

// hostile is how many values a stranger gives each label.
const hostile = 20_000

// CheckBounds gives each label many values, and compares those that it has then with docs/monitoring.md. All
// labels of the metrics need a constraint.
func (r *Registered) CheckBounds(root string) error {
	bounds, err := Bounds(root)
	if err != nil {
		return err
	}
	if len(r.free) > 0 {
		return fmt.Errorf("these labels can have any value: give them a prometheus.ConstrainedLabel: %q", r.free)
	}
	for name, add := range r.series {
		for _, one := range r.labels[name] {
			labels := prometheus.Labels{}
			for _, each := range r.labels[name] {
				labels[each] = "another"
			}
			for i := range hostile {
				labels[one] = fmt.Sprint(i)
				add(labels)
			}
			for _, value := range bounds[name][one].Values {
				labels[one] = value
				add(labels)
			}
			bound, values := bounds[name][one], valuesOf(r.collectors[name], one)
			if !bound.Allows(values) || bound.Configured || bound.Others == 0 && len(values) != len(bound.Values) {
				return fmt.Errorf("%s, label %s: it has %d values, and docs/monitoring.md allows %+v", name, one, len(values), bound)
			}
		}
	}
	return nil
}

func valuesOf(collector prometheus.Collector, label string) map[string]bool {
	metrics := make(chan prometheus.Metric)
	go func() {
		collector.Collect(metrics)
		close(metrics)
	}()
	values := map[string]bool{}
	for metric := range metrics {
		var series dto.Metric
		if metric.Write(&series) != nil {
			continue
		}
		for _, pair := range series.Label {
			if pair.GetName() == label {
				values[pair.GetValue()] = true
			}
		}
	}
	return values
}

package monitoring

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Registered is a prometheus.Registerer for tests. It has the metrics that were registered, whether they
// have values yet or not, with the names of their labels, sorted.
type Registered map[string][]string

// descriptor is what prometheus.Desc, which has no accessors, writes.
var descriptor = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

var label = regexp.MustCompile(`([a-z_]+)(?:="[^"]*")?(?:,|$)`)

// Register implements prometheus.Registerer.
func (r Registered) Register(collector prometheus.Collector) error {
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
		labels := []string{}
		for _, list := range parts[2:] {
			for _, found := range label.FindAllStringSubmatch(list, -1) {
				labels = append(labels, found[1])
			}
		}
		slices.Sort(labels)
		r[parts[1]] = labels
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r Registered) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		_ = r.Register(c) // panics by itself
	}
}

// Unregister implements prometheus.Registerer.
func (r Registered) Unregister(prometheus.Collector) bool { return false }

// Check compares the metrics with those of docs/monitoring.md whose names begin with a prefix.
func (r Registered) Check(root, prefix string) error {
	documented, err := DocumentedLabels(root, prefix)
	if err == nil && (len(r) == 0 || !maps.EqualFunc(r, documented, slices.Equal)) {
		err = fmt.Errorf("registered are %q\ndocs/monitoring.md has %q", map[string][]string(r), documented)
	}
	return err
}

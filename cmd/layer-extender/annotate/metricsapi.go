package annotate

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// MetricsAPI is a Source that asks metrics.k8s.io, as metrics-server serves it. That has no past: means and
// deviations are those of what it was asked.
type MetricsAPI struct {
	client  rest.Interface
	samples int
	// known has the last samples of nodes, the oldest first.
	known map[string][]sample
}

// sample is how much of a node is used at a time.
type sample struct {
	Timestamp time.Time       `json:"timestamp"`
	Usage     v1.ResourceList `json:"usage"`
}

// NewMetricsAPI returns a Source whose statistics are those of a window of time.
func NewMetricsAPI(client rest.Interface, window time.Duration) *MetricsAPI {
	return &MetricsAPI{client: client, samples: max(1, int(window/Interval)), known: map[string][]sample{}}
}

// Read implements Source.
func (m *MetricsAPI) Read(ctx context.Context) (Uses, error) {
	text, err := m.client.Get().AbsPath("/apis/metrics.k8s.io/v1beta1/nodes").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics.k8s.io, which metrics-server serves: %w", err)
	}
	var list struct { // NodeMetricsList of k8s.io/metrics, as far as it is read
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			sample
		} `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("metrics.k8s.io: %w", err)
	}
	uses, known := Uses{}, map[string][]sample{} // without nodes that are gone
	for _, item := range list.Items {
		samples := m.known[item.Metadata.Name]
		// The same sample again is none.
		if n := len(samples); n == 0 || item.Timestamp.After(samples[n-1].Timestamp) {
			samples = append(samples, item.sample)
		}
		samples = samples[max(0, len(samples)-m.samples):]
		known[item.Metadata.Name] = samples
		use := map[v1.ResourceName]Use{}
		if cpu, ok := useOf(samples, func(s sample) (int64, bool) { q, ok := s.Usage[v1.ResourceCPU]; return q.MilliValue(), ok }); ok {
			use[v1.ResourceCPU] = cpu
		}
		if memory, ok := useOf(samples, func(s sample) (int64, bool) { q, ok := s.Usage[v1.ResourceMemory]; return q.Value(), ok }); ok {
			use[v1.ResourceMemory] = memory
		}
		uses[item.Metadata.Name] = use
	}
	m.known = known
	return uses, nil
}

// useOf returns the mean and the deviation of samples; ok is false if they do not have the resource.
func useOf(samples []sample, of func(sample) (int64, bool)) (use Use, ok bool) {
	sum, squares, n := 0., 0., 0.
	for _, s := range samples {
		if value, ok := of(s); ok {
			sum, squares, n = sum+float64(value), squares+float64(value)*float64(value), n+1
		}
	}
	if n == 0 {
		return Use{}, false
	}
	mean := sum / n
	return Use{Mean: mean, Deviation: math.Sqrt(max(squares/n-mean*mean, 0))}, true
}

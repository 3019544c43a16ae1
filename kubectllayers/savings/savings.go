// Package savings asks Prometheus what placements saved over a time.
package savings

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/layer-locality/layer-locality/kubectllayers/text"
	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// timeout is how long an answer may take.
const timeout = 20 * time.Second

// ParseSince reads a time such as 90m, 24h or 7d.
func ParseSince(value string) (time.Duration, error) {
	d, err := model.ParseDuration(value)
	if err != nil || d < model.Duration(time.Minute) || d > model.Duration(366*24*time.Hour) {
		return 0, fmt.Errorf("--since %q: want a time from 1m to 366d, such as 24h or 7d", text.Line(value, 50))
	}
	return time.Duration(d), nil
}

// selector is matchers of labels, as in braces behind the name of a metric.
var selector = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\{}\n]*"(,[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\{}\n]*")*$`)

// Of asks a Prometheus what was saved, by profile, since a time before now; matchers say by which series,
// such as cluster="a", all if they are empty. Counters are extrapolated by Prometheus (increase), so bytes
// are not exact.
func Of(ctx context.Context, address, matchers string, since time.Duration) (*placements.Savings, error) {
	if matchers != "" && !selector.MatchString(matchers) {
		return nil, fmt.Errorf("--prometheus-selector %q: want labels such as cluster=\"a\", with commas between them", text.Line(matchers, 200))
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--prometheus %q: want a URL such as http://prometheus.monitoring:9090", text.Line(address, 200))
	}
	client, err := api.NewClient(api.Config{Address: address})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := &placements.Savings{Since: time.Now().Add(-since), Profiles: []placements.Saved{}}
	found := map[string]*placements.Saved{}
	for _, q := range []struct {
		query string
		take  func(s *placements.Saved, labels model.Metric, value float64)
	}{
		{"sum by (profile) (increase(scheduler_layerlocality_placements_total{%s}[%s]))", func(s *placements.Saved, _ model.Metric, value float64) { s.Pods = int64(value + 0.5) }},
		{"sum by (profile, of) (increase(scheduler_layerlocality_missing_bytes_total{%s}[%s]))", func(s *placements.Saved, labels model.Metric, value float64) {
			if labels["of"] == "mean" {
				s.MeanMissingBytes = value
			} else {
				s.MissingBytes = int64(value + 0.5)
			}
		}},
	} {
		value, _, err := prometheusv1.NewAPI(client).Query(ctx, fmt.Sprintf(q.query, matchers, model.Duration(since)), time.Time{}) // now, on the clock of Prometheus
		if err != nil {
			return nil, fmt.Errorf("Prometheus at %s does not answer: %s: check the address, with kubectl port-forward if it is in the cluster", text.Line(u.Redacted(), 200), text.Line(err.Error(), 200)) //nolint:staticcheck // a name
		}
		vector, ok := value.(model.Vector)
		if !ok {
			return nil, fmt.Errorf("Prometheus at %s answers with a %s: it is none", text.Line(u.Redacted(), 200), value.Type()) //nolint:staticcheck // a name
		}
		for _, sample := range vector {
			count := float64(sample.Value)
			if math.IsNaN(count) || count < 0 || count >= math.MaxInt64 {
				return nil, fmt.Errorf("Prometheus at %s answers with %s: it is not a count", text.Line(u.Redacted(), 200), sample.Value) //nolint:staticcheck // a name
			}
			profile := text.Line(string(sample.Metric["profile"]), 253)
			s := found[profile]
			if s == nil {
				s = &placements.Saved{Profile: profile}
				found[profile] = s
			}
			q.take(s, sample.Metric, count)
			answer.Since = sample.Timestamp.Time().Add(-since)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("Prometheus at %s has no scheduler_layerlocality_missing_bytes_total: have it scrape the scheduler (docs/monitoring.md)", text.Line(u.Redacted(), 200)) //nolint:staticcheck // a name
	}
	for _, s := range slices.SortedFunc(maps.Values(found), func(a, b *placements.Saved) int { return strings.Compare(a.Profile, b.Profile) }) {
		answer.Profiles = append(answer.Profiles, *s)
	}
	return answer, nil
}

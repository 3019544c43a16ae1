package collect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/layer-locality/layer-locality/scheduler/placements"
	"github.com/layer-locality/layer-locality/terminal"
)

// maxWarnings is how many of Prometheus' warnings are noted.
const maxWarnings = 5

// bounded refuses answers that are too large.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
	}
	return response, err
}

// ParseSince reads a time such as 90m, 24h or 7d.
func ParseSince(value string) (time.Duration, error) {
	d, err := model.ParseDuration(value)
	if err != nil || d < model.Duration(time.Minute) || d > model.Duration(366*24*time.Hour) {
		return 0, fmt.Errorf("--since %q: want a time from 1m to 366d, such as 24h or 7d", terminal.Line(value, 50))
	}
	return time.Duration(d), nil
}

// labelMatchers are matchers of labels, as in braces behind the name of a metric.
var labelMatchers = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\{}\n]*"(,[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\{}\n]*")*$`)

// SavingsOf asks a Prometheus what was saved, by profile, since a time before now; matchers choose the series,
// such as cluster="a", all if they are empty. Counters are extrapolated by Prometheus (increase), so bytes
// are not exact. Problems are what Prometheus warns of: it may not have all series.
func SavingsOf(ctx context.Context, address, matchers string, since time.Duration) (*placements.Savings, []*Problem, error) {
	if matchers != "" && !labelMatchers.MatchString(matchers) {
		return nil, nil, fmt.Errorf("--prometheus-selector %q: want labels such as cluster=\"a\", with commas between them", terminal.Line(matchers, 200))
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, nil, fmt.Errorf("--prometheus %q: want a URL such as http://prometheus.monitoring:9090", terminal.Line(address, 200))
	}
	name := "Prometheus at " + terminal.Line(u.Redacted(), 200)
	client, err := api.NewClient(api.Config{Address: address, RoundTripper: bounded{api.DefaultRoundTripper}})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := &placements.Savings{Since: time.Now().Add(-since), Profiles: []placements.Saved{}}
	found := map[string]*placements.Saved{}
	var problems []*Problem
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
		value, warnings, err := prometheusv1.NewAPI(client).Query(ctx, fmt.Sprintf(q.query, matchers, model.Duration(since)), time.Time{}) // now, on the clock of Prometheus
		if errors.As(err, new(*http.MaxBytesError)) {
			return nil, nil, fmt.Errorf("%s answers with more than %d MiB: it is none", name, maxAnswer>>20)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s does not answer: %s: check the address, with kubectl port-forward if it is in the cluster", name, terminal.Line(err.Error(), 200))
		}
		vector, ok := value.(model.Vector)
		if !ok {
			return nil, nil, fmt.Errorf("%s answers with a %s: it is none", name, value.Type())
		}
		for _, warning := range warnings {
			why := terminal.Line(warning, 300)
			if len(problems) < maxWarnings && !slices.ContainsFunc(problems, func(p *Problem) bool { return p.Why == why }) {
				problems = append(problems, &Problem{What: "all series of " + name, Why: why, Help: "the sums may be too small; see its log"})
			}
		}
		for _, sample := range vector {
			if sample == nil {
				continue // null in an answer
			}
			count := float64(sample.Value)
			if math.IsNaN(count) || count < 0 || count >= math.MaxInt64 {
				return nil, nil, fmt.Errorf("%s answers with %s: it is not a count", name, sample.Value)
			}
			profile := terminal.Line(string(sample.Metric["profile"]), 253)
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
		return nil, nil, fmt.Errorf("%s has no scheduler_layerlocality_missing_bytes_total: have it scrape the scheduler (docs/monitoring.md)", name)
	}
	for _, s := range slices.SortedFunc(maps.Values(found), func(a, b *placements.Saved) int { return strings.Compare(a.Profile, b.Profile) }) {
		answer.Profiles = append(answer.Profiles, *s)
	}
	return answer, problems, nil
}

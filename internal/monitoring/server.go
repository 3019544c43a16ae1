package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Server is the URL of a Prometheus, without a path.
type Server string

// direct uses no proxy of the environment: the servers are on this machine.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get asks an endpoint of the API, and reads its data.
func (s Server) get(ctx context.Context, path string, query url.Values, data any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(s)+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := direct.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status string
		Data   any
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return nil
}

// Sample is a series at a moment.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query returns the values of an expression now; not those that are no number (0/0), which a
// dashboard does not show.
func (s Server) Query(ctx context.Context, expr string) (samples []Sample, err error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := s.get(ctx, "query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expr, err)
		}
		if !math.IsNaN(value) {
			samples = append(samples, Sample{r.Metric, value})
		}
	}
	return samples, nil
}

// Metrics returns the metrics with a prefix that are there now, a histogram once, with the names of their
// labels, sorted; not those of scraping, which a target's up has, too, and of histograms' buckets.
func (s Server) Metrics(ctx context.Context, prefix string) (map[string][]string, error) {
	samples, err := s.Query(ctx, fmt.Sprintf(`{__name__=~"%s.*"}`, prefix))
	if err != nil {
		return nil, err
	}
	targets, err := s.Query(ctx, "up")
	if err != nil {
		return nil, err
	}
	scraped := map[string]map[string]string{} // by job
	for _, target := range targets {
		scraped[target.Labels["job"]] = target.Labels
	}
	there := map[string]bool{}
	for _, sample := range samples {
		there[sample.Labels["__name__"]] = true
	}
	metrics := map[string][]string{}
	for _, sample := range samples {
		name := sample.Labels["__name__"]
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			if whole, cut := strings.CutSuffix(name, part); cut && there[whole+"_bucket"] {
				name = whole
			}
		}
		labels := metrics[name]
		for label := range sample.Labels {
			if _, ok := scraped[sample.Labels["job"]][label]; !ok && label != "__name__" && label != "le" && !slices.Contains(labels, label) {
				labels = append(labels, label)
			}
		}
		slices.Sort(labels)
		metrics[name] = labels
	}
	return metrics, nil
}

// Firing returns the labels of the alerts that fire.
func (s Server) Firing(ctx context.Context) (alerts []map[string]string, err error) {
	samples, err := s.Query(ctx, `ALERTS{alertstate="firing"}`)
	for _, sample := range samples {
		alerts = append(alerts, sample.Labels)
	}
	return alerts, err
}

// Evaluates returns the names of the alerts that the server evaluates without an error.
func (s Server) Evaluates(ctx context.Context) (names []string, err error) {
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Type, Health, LastError string }
		}
	}
	if err := s.get(ctx, "rules", nil, &data); err != nil {
		return nil, err
	}
	for _, group := range data.Groups {
		for _, rule := range group.Rules {
			if rule.Type != "alerting" || rule.Health != "ok" {
				return nil, fmt.Errorf("%s %s is %s: %s", rule.Type, rule.Name, rule.Health, rule.LastError)
			}
			names = append(names, rule.Name)
		}
	}
	return names, nil
}

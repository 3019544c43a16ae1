package dashboards

import (
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/internal/monitoring"
)

const root = "../.."

func read(t *testing.T) []Dashboard {
	t.Helper()
	all, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Dashboards can be imported anywhere: fixed UIDs, a data source that users choose, no plugins. Each
// panel has a description and a unit.
func TestDashboards(t *testing.T) {
	var uids []string
	for _, d := range read(t) {
		uids = append(uids, d.UID)
		if d.Title == "" || d.Description == "" || d.SchemaVersion == 0 {
			t.Errorf("%s: title, description and version of the schema", d.File)
		}
		variables := []string{"datasource"}
		for i, v := range d.Templating.List {
			switch {
			case (v.Type == "datasource") != (i == 0) || i == 0 && (v.Name != "datasource" || string(v.Query) != `"prometheus"`):
				t.Errorf("%s: the first variable, and no other, is the data source, a Prometheus: not so %s", d.File, v.Name)
			case i > 0 && (v.Type != "query" || !isSource(v.Datasource) || len(Selected(string(v.Query))) != 1):
				t.Errorf("%s: %s: a query of the variable's data source, with one metric: %s", d.File, v.Name, v.Query)
			case i > 0:
				variables = append(variables, v.Name)
			}
		}
		taken, ids := map[[2]int]string{}, map[int]bool{}
		for _, p := range d.Panels {
			at := d.File + ": " + p.Title
			if p.Title == "" || ids[p.ID] || p.ID == 0 {
				t.Errorf("%s: no title, or its number %d is that of another", at, p.ID)
			}
			ids[p.ID] = true
			g := p.GridPos
			if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
				t.Errorf("%s: at %+v", at, g)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: where %s is", at, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if !slices.Contains([]string{"timeseries", "stat"}, p.Type) || p.FieldConfig.Defaults.Unit == "" || !isSource(p.Datasource) || len(p.Targets) == 0 {
				t.Errorf("%s: a panel of Grafana itself, with a unit, the variable as data source, and queries", at)
			}
			if !strings.HasSuffix(p.Description, ".") {
				t.Errorf("%s: no description", at)
			}
			refs := map[string]bool{}
			for _, q := range p.Targets {
				if q.Expr == "" || refs[q.RefID] || !isSource(q.Datasource) || q.Instant == q.Range {
					t.Errorf("%s: %+v", at, q)
				}
				refs[q.RefID] = true
				for _, name := range Variables(q.Expr) {
					if !slices.Contains(variables, name) && !slices.Contains([]string{"__range", "__rate_interval"}, name) {
						t.Errorf("%s: there is no variable %s", at, name)
					}
				}
			}
		}
	}
	if want := []string{"layer-locality-components", "layer-locality-overview"}; !slices.Equal(uids, want) {
		t.Errorf("UIDs, which links of users contain: %q, want %q", uids, want)
	}
}

func isSource(s Source) bool { return s == Source{Type: "prometheus", UID: "${datasource}"} }

// Each metric in a query is documented, and each documented one of ours is in a query.
func TestMetrics(t *testing.T) {
	names, err := monitoring.Documented(root, "")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, name := range names {
		documented[name] = true
	}
	shown := map[string]bool{}
	for _, d := range read(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				selected := Selected(q.Expr)
				if len(selected) == 0 {
					t.Errorf("%s: %s: no metric in %s", d.File, p.Title, q.Expr)
				}
				for _, series := range selected {
					if shown[Metric(series)] = true; !documented[Metric(series)] {
						t.Errorf("%s: %s: docs/monitoring.md has no row of %s", d.File, p.Title, Metric(series))
					}
				}
			}
		}
	}
	for name := range documented {
		if !shown[name] && !optional(name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// optional reports whether a metric is of what is off by default, or of layer-extender: a panel of it would be
// empty on most clusters.
func optional(name string) bool {
	return strings.HasPrefix(name, "scheduler_qosaware_") || strings.HasPrefix(name, "layerlocality_peers_") || strings.HasPrefix(name, "layer_extender_") || name == "scheduler_nodes_without_statistics_total"
}

func TestQueries(t *testing.T) {
	const expr = `histogram_quantile(0.9, sum by (le) (rate(a_bucket{x=~"$job", y=~"${node}"}[$__rate_interval]))) / on (b) a:c{}`
	if got := Selected(expr); !slices.Equal(got, []string{"a:c", "a_bucket"}) {
		t.Errorf("selected: %q", got)
	}
	if got := Variables(expr); !slices.Equal(got, []string{"job", "node", "__rate_interval"}) {
		t.Errorf("variables: %q", got)
	}
	if got := Filled(expr, "30s"); got != `histogram_quantile(0.9, sum by (le) (rate(a_bucket{x=~".+", y=~".+"}[30s]))) / on (b) a:c{}` {
		t.Error(got)
	}
	if got := Metric("a_bucket"); got != "a" {
		t.Error(got)
	}
}

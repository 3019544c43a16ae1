package page

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// tableOfDocument is a table that a document has between two comments,
//
//	<!-- evalpage: NAME -->
//	<!-- end -->
type tableOfDocument struct {
	columns []documentColumn
	rows    []documentRow
}

// documentColumn is a value of a policy.
type documentColumn struct {
	title, policy, metric string
	// strong prints the value in bold type, interval with its confidence interval.
	strong, interval bool
}

// documentRow is a workload.
type documentRow struct {
	// text is markdown.
	text, experiment, scenario string
	x                          float64
}

// ours is the policy of this project.
const ours = "layerlocality"

// documentTables are those of docs/evaluation.md.
var documentTables = map[string]tableOfDocument{
	"summary": {
		columns: []documentColumn{
			{"bytes", ours, "bytes", true, true}, {"avoided", ours, "avoided", false, false},
			{"mean start-up", ours, "startup", true, false},
			{"CPU std: default", baseline, "cpu", false, false}, {"LayerLocality", ours, "cpu", false, false},
		},
		rows: []documentRow{
			{"1,000 pods on 10 empty nodes", figureOf, "zipf-1", 0},
			{"the same, of ReplicaSets", figureOf, "replicasets", 0},
			{"12,000 pods on the 10 nodes", "long", "zipf-1", 12000},
			{"5,000 pods on 50 nodes", figureOf, "nodes-50", 0},
			{"1,000 pods, links of 10 Mbit/s", "bandwidth", "zipf-1", 10},
			{"rolling updates, 1 replica", figureOf, "rolling-1", 0},
			{"rolling updates, 4 replicas", figureOf, "rolling-4", 0},
			{"bursts of 50 pods, few pods before", figureOf, "burst-50", 0},
			{"the same, on nodes that the default profile filled", "bursts", "burst-50-late after default", 0},
			{"the same, on nodes that LayerLocality filled", "bursts", "burst-50-late after layerlocality", 0},
			{"sandboxes: 125 short pods a minute, 500 images", figureOf, "sandbox", 0},
		},
	},
	"results": {
		columns: []documentColumn{
			{"bytes: LRScheduler", "lrscheduler", "bytes", false, false}, {"**LayerLocality**", ours, "bytes", true, true}, {"greedy", "greedy", "bytes", false, false},
			{"start-up: LRScheduler", "lrscheduler", "startup", false, false}, {"**LayerLocality**", ours, "startup", true, false}, {"its p99", ours, "p99", false, false},
			{"CPU std: default", baseline, "cpu", false, false}, {"LRScheduler", "lrscheduler", "cpu", false, false}, {"**LayerLocality**", ours, "cpu", false, false},
		},
		rows: []documentRow{
			{"`zipf-1`: pods one by one, 10 nodes", figureOf, "zipf-1", 0},
			{"`replicasets`: the same, of ReplicaSets", figureOf, "replicasets", 0},
			{"`nodes-50`: 5,000 pods, 50 nodes", figureOf, "nodes-50", 0},
			{"`busy`: 85 % of the CPU requested", figureOf, "busy", 0},
			{"`burst-50`: 50 pods of a new image at once", figureOf, "burst-50", 0},
			{"`burst-50-replicasets`: the same, of ReplicaSets", figureOf, "burst-50-replicasets", 0},
			{"`sandbox`: bursts of 50 to 200 short pods a minute", figureOf, "sandbox", 0},
			{"`rolling-1`: updates, 1 replica", figureOf, "rolling-1", 0},
			{"`rolling-4`: 4 replicas", figureOf, "rolling-4", 0},
			{"`rolling-4-apart`: 4, on different nodes", figureOf, "rolling-4-apart", 0},
			{"`lrscheduler-4`: 20 pods, 4 nodes, 30 Mbit/s", figureOf, "lrscheduler-4", 0},
		},
	},
	"bursts": {
		columns: []documentColumn{
			{"seconds: default", baseline, "startupMean", false, false}, {"**LayerLocality**", ours, "startupMean", true, false},
			{"start-up: LRScheduler", "lrscheduler", "startup", false, false}, {"**LayerLocality**", ours, "startup", true, true},
			{"bytes: LRScheduler", "lrscheduler", "bytes", false, false}, {"**LayerLocality**", ours, "bytes", true, true},
			{"p99: **LayerLocality**", ours, "p99", true, false},
			{"CPU std: LRScheduler", "lrscheduler", "cpu", false, false}, {"**LayerLocality**", ours, "cpu", false, false},
		},
		rows: []documentRow{
			{"30 pods, after the default profile", "bursts", "burst-30-late after default", 0}, {"50 pods, after the default profile", "bursts", "burst-50-late after default", 0},
			{"30 pods, after LayerLocality", "bursts", "burst-30-late after layerlocality", 0}, {"50 pods, after LayerLocality", "bursts", "burst-50-late after layerlocality", 0},
		},
	},
	"alternatives": alternativesTable(),
}

// alternativesTable has the policies in the rows' places: what is compared are ways to bring
// images to nodes, in few scenarios.
func alternativesTable() tableOfDocument {
	var t tableOfDocument
	for _, p := range []string{ours, "peers", "peers+" + ours, "ahead", "ahead+" + ours, "lazy", "lazy+" + ours} {
		title := "`" + p + "`"
		if alone, both := strings.CutSuffix(p, "+"+ours); both {
			title = "`" + alone + "` + LL"
		}
		t.columns = append(t.columns, documentColumn{title, p, "", false, false})
	}
	for _, scenario := range []string{"zipf-1", "zipf-1 at 30 Mbit/s", "nodes-50", "burst-50", "rolling-2", "sandbox"} {
		t.rows = append(t.rows, documentRow{"`" + scenario + "`", "alternatives", scenario, 0})
	}
	return t
}

var documentPlace = regexp.MustCompile(`(?s)(<!-- evalpage: ([a-z]+) -->\n).*?(<!-- end -->)`)

// Document returns a document with the tables of which the report has all experiments. It
// fails if the document asks for a table that there is not, or if a run is missing.
func Document(document string, report *evaluation.Report) (string, error) {
	summaries := map[string]summary{}
	policies := policiesOf(report)
	for i := range report.Experiments {
		e := &report.Experiments[i]
		summaries[e.Name] = summarise(e, policies)
	}
	var failed error
	document = documentPlace.ReplaceAllStringFunc(document, func(found string) string {
		parts := documentPlace.FindStringSubmatch(found)
		table, ok := documentTables[parts[2]]
		if !ok {
			failed = fmt.Errorf("no table %q is known", parts[2])
			return found
		}
		for _, row := range table.rows {
			if _, ok := summaries[row.experiment]; !ok {
				return found // not played
			}
		}
		text, err := table.markdown(summaries)
		if err != nil {
			failed = fmt.Errorf("table %s: %w", parts[2], err)
			return found
		}
		return parts[1] + text + parts[3]
	})
	return document, failed
}

func (t *tableOfDocument) markdown(summaries map[string]summary) (string, error) {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range t.columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(t.columns)+1) + "\n")
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s |", row.text)
		for _, c := range t.columns {
			text, err := valueIn(summaries[row.experiment], row, c)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// valueIn returns the text of a cell.
func valueIn(s summary, row documentRow, column documentColumn) (string, error) {
	for _, g := range s.Groups {
		if g.Scenario != row.scenario || g.X != row.x {
			continue
		}
		for _, c := range g.Cells {
			if c.Policy == column.policy {
				return column.text(c), nil
			}
		}
	}
	return "", fmt.Errorf("no run of %s in %s at %v of %s", column.policy, row.scenario, row.x, row.experiment)
}

// text formats the value of a cell: start-up, bytes and those from the registry of an
// alternative; otherwise one metric.
func (c documentColumn) text(cell cell) string {
	if c.metric == "" {
		return fmt.Sprintf("%s, %s, %s", number2(cell.Values["startup"].Mean), number2(cell.Values["bytes"].Mean), number2(cell.Values["fromRegistry"].Mean))
	}
	e := cell.Values[c.metric]
	text := number2(e.Mean)
	if c.metric == "cpu" {
		text = decimals(3)(e.Mean)
	}
	if c.metric == "pulled" || c.metric == "startupMean" {
		text = digits(e.Mean)
	}
	if c.strong {
		text = "**" + text + "**"
	}
	if half := e.half(); c.interval && half >= 0.005 {
		text += " ± " + number2(half)
	}
	return text
}

// number2 has two digits after the point, or none of large numbers.
func number2(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case math.Abs(v) >= 9.95:
		return digits(v)
	}
	return decimals(2)(v)
}

package page

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
)

// reportOf has what a table shows: the default policy pulls 100 GB and starts pods in 2 s, all
// others 40 GB in 1 s, 10 GB of it from other nodes.
func reportOf(t tableOfDocument) *evaluation.Report {
	experiments := map[string]*evaluation.Experiment{}
	for _, row := range t.rows {
		e := experiments[row.experiment]
		if e == nil {
			e = &evaluation.Experiment{Name: row.experiment, Axis: "x"}
			experiments[row.experiment] = e
		}
		names := map[string]bool{baseline: true}
		for _, c := range t.columns {
			names[c.policy] = true
		}
		for name := range names {
			r := run(row.scenario, name, row.x, 1, 40e9)
			r.PeerBytes, r.DistinctBytes, r.StartupMean, r.StartupP99, r.CPUStd = 10e9, 20e9, 1, 1, 0.0814
			if name == baseline {
				r.PulledBytes, r.PeerBytes, r.StartupMean, r.CPUStd = 100e9, 0, 2, 0.04
			}
			e.Runs = append(e.Runs, r)
		}
	}
	report := &evaluation.Report{}
	for _, name := range slices.Sorted(maps.Keys(experiments)) {
		report.Experiments = append(report.Experiments, *experiments[name])
	}
	return report
}

func TestDocument(t *testing.T) {
	const before, after = "text\n<!-- evalpage: %s -->\n", "<!-- end -->\nmore text\n"
	for name, want := range map[string]string{
		"summary":      "| 12,000 pods on the 10 nodes | **0.40** | 0.75 | **0.50** | 0.040 | 0.081 |\n",
		"bursts":       "| 50 pods, after LayerLocality | 2 | **1** | 0.50 | **0.50** | 0.40 | **0.40** | **1.00** | 0.081 | 0.081 |\n",
		"alternatives": "| `rolling-2` | 0.50, 0.40, 0.30 | 0.50, 0.40, 0.30 | ",
		"results":      "| `zipf-1`: pods one by one, 10 nodes | 0.40 | **0.40** | 0.40 | 0.50 | **0.50** | ",
	} {
		table := documentTables[name]
		old := strings.ReplaceAll(before, "%s", name) + "| an old table |\n" + after
		got, err := Document(old+old, reportOf(table))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(got, want) != 2 || strings.Contains(got, "an old table") {
			t.Errorf("%s: no %q twice in\n%s", name, want, got)
		}
		for _, line := range strings.Split(got, "\n") {
			if n := strings.Count(line, "|"); strings.HasPrefix(line, "|") && n != len(table.columns)+2 {
				t.Errorf("%s: %d cells in %s", name, n-1, line)
			}
		}
		// Again: the same. Of another report: as it was.
		if again, err := Document(got, reportOf(table)); err != nil || again != got {
			t.Errorf("%s: changed by the same report, error %v", name, err)
		}
		if kept, err := Document(old, &evaluation.Report{}); err != nil || kept != old {
			t.Errorf("%s: changed by an empty report, error %v", name, err)
		}
		poor := reportOf(table)
		poor.Experiments[0].Runs = poor.Experiments[0].Runs[:1]
		if _, err := Document(old, poor); err == nil || !strings.Contains(err.Error(), "table "+name+": no run of ") {
			t.Errorf("%s: runs are missing, error %v", name, err)
		}
	}
	if got, _ := Document("<!-- evalpage: alternatives -->\n<!-- end -->", reportOf(documentTables["alternatives"])); !strings.Contains(got, "| | `layerlocality` | `peers` | `peers` + LL | `ahead` | ") {
		t.Errorf("the head of alternatives:\n%s", got)
	}
	if _, err := Document("<!-- evalpage: other -->\n<!-- end -->", &evaluation.Report{}); err == nil || !strings.Contains(err.Error(), `no table "other"`) {
		t.Errorf("an unknown table: %v", err)
	}
}

// docs/evaluation.md has every table, and no other.
func TestDocumentHasTables(t *testing.T) {
	text, err := os.ReadFile("../../../docs/evaluation.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Document(string(text), &evaluation.Report{}); err != nil {
		t.Error(err)
	}
	for name := range documentTables {
		if strings.Count(string(text), "<!-- evalpage: "+name+" -->\n") != 1 {
			t.Errorf("table %s is not there once", name)
		}
	}
}

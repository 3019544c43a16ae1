package evaluation

import (
	"encoding/csv"
	"io"
	"math"
	"strconv"
)

// columns of the CSV; their order and names must not change, so that new ones come last.
// Columns from Metrics are named as in the JSON.
var columns = []struct {
	name  string
	value func(*Experiment, *Run) string
}{
	{"experiment", func(e *Experiment, _ *Run) string { return e.Name }},
	{"scenario", func(_ *Experiment, r *Run) string { return r.Scenario }},
	{"policy", func(_ *Experiment, r *Run) string { return r.Policy }},
	{"axis", func(e *Experiment, _ *Run) string { return e.Axis }},
	{"x", func(e *Experiment, r *Run) string {
		if e.Axis == "" {
			return ""
		}
		return float(r.X)
	}},
	{"seed", func(_ *Experiment, r *Run) string { return strconv.FormatUint(r.Seed, 10) }},
	{"pods", func(_ *Experiment, r *Run) string { return strconv.Itoa(r.Pods) }},
	{"unschedulable", func(_ *Experiment, r *Run) string { return strconv.Itoa(r.Unschedulable) }},
	{"unstarted", func(_ *Experiment, r *Run) string { return strconv.Itoa(r.Unstarted) }},
	{"pulledBytes", func(_ *Experiment, r *Run) string { return strconv.FormatInt(r.PulledBytes, 10) }},
	{"startupMean", func(_ *Experiment, r *Run) string { return float(r.StartupMean) }},
	{"startupP50", func(_ *Experiment, r *Run) string { return float(r.StartupP50) }},
	{"startupP99", func(_ *Experiment, r *Run) string { return float(r.StartupP99) }},
	{"cpuStd", func(_ *Experiment, r *Run) string { return float(r.CPUStd) }},
	{"maxMeanPods", func(_ *Experiment, r *Run) string { return float(r.MaxMeanPods) }},
	{"diskBytes", func(_ *Experiment, r *Run) string { return strconv.FormatInt(r.DiskBytes, 10) }},
	{"removedBytes", func(_ *Experiment, r *Run) string { return strconv.FormatInt(r.RemovedBytes, 10) }},
	{"seconds", func(_ *Experiment, r *Run) string { return float(r.Seconds) }},
	{"peerBytes", func(_ *Experiment, r *Run) string { return strconv.FormatInt(r.PeerBytes, 10) }},
	{"distinctBytes", func(_ *Experiment, r *Run) string { return strconv.FormatInt(r.DistinctBytes, 10) }},
	{"startupNew", func(_ *Experiment, r *Run) string { return float(r.StartupNew) }},
}

// float is exact; NaN is written as an empty value, as if missing.
func float(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// WriteCSV writes the report as CSV (RFC 4180), with a header and one line per
// run: every metric, in the units of Metrics. x is empty
// if the experiment has no axis.
func WriteCSV(w io.Writer, report *Report) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	line := make([]string, len(columns))
	for i, column := range columns {
		line[i] = column.name
	}
	if err := out.Write(line); err != nil {
		return err
	}
	for i := range report.Experiments {
		experiment := &report.Experiments[i]
		for j := range experiment.Runs {
			for k, column := range columns {
				line[k] = column.value(experiment, &experiment.Runs[j])
			}
			if err := out.Write(line); err != nil {
				return err
			}
		}
	}
	out.Flush()
	return out.Error()
}

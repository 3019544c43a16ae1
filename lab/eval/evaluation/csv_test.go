package evaluation

import (
	"bytes"
	"encoding/csv"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestWriteCSV(t *testing.T) {
	report := &Report{Experiments: []Experiment{
		{Name: "plain", Runs: []Run{{
			Scenario: `says "hello", twice`, Policy: "default", X: 7, Seed: math.MaxUint64,
			Metrics: Metrics{
				Pods: 20, Unschedulable: 1, Unstarted: 3, PulledBytes: math.MaxInt64, StartupMean: 1.5, StartupP50: 1, StartupP99: 1e-9,
				CPUStd: 0.1, MaxMeanPods: 1.25, DiskBytes: 3, RemovedBytes: 4, Seconds: 0.5, PeerBytes: 5, DistinctBytes: 6, StartupNew: 2.5,
			},
		}}},
		{Name: "axis", Axis: "two\nlines", Runs: []Run{{Scenario: "s", Policy: "p", X: 0.6, Metrics: Metrics{CPUStd: math.NaN(), Seconds: math.Inf(1)}}}},
	}}
	var out bytes.Buffer
	if err := WriteCSV(&out, report); err != nil {
		t.Fatal(err)
	}
	want := "experiment,scenario,policy,axis,x,seed,pods,unschedulable,unstarted,pulledBytes,startupMean,startupP50,startupP99,cpuStd,maxMeanPods,diskBytes,removedBytes,seconds,peerBytes,distinctBytes,startupNew\r\n" +
		`plain,"says ""hello"", twice",default,,,18446744073709551615,20,1,3,9223372036854775807,1.5,1,1e-09,0.1,1.25,3,4,0.5,5,6,2.5` + "\r\n" +
		"axis,s,p,\"two\r\nlines\",0.6,0,0,0,0,0,0,0,0,,0,0,0,,0,0,0\r\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	lines, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 3 || lines[1][1] != report.Experiments[0].Runs[0].Scenario || lines[2][3] != "two\nlines" {
		t.Errorf("read back: %q", lines)
	}
}

// A metric that is added to Metrics must not be forgotten here.
func TestColumnsAreComplete(t *testing.T) {
	var names []string
	for _, column := range columns {
		names = append(names, column.name)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Metrics]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !slices.Contains(names, name) {
			t.Errorf("metric %s has no column", name)
		}
	}
}

func TestWriteCSVOfNothing(t *testing.T) {
	var out bytes.Buffer
	if err := WriteCSV(&out, &Report{}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "\n"); got != 1 {
		t.Errorf("%d lines, not only a header", got)
	}
}

type brokenWriter struct{}

var errBroken = errors.New("disk full")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteCSVReportsErrors(t *testing.T) {
	if err := WriteCSV(brokenWriter{}, &Report{}); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

func TestCheck(t *testing.T) {
	run := Run{Scenario: "s", Policy: "p", X: 1, Seed: 2}
	for name, test := range map[string]struct {
		report Report
		want   string
	}{
		"empty":     {Report{}, ""},
		"good":      {Report{Experiments: []Experiment{{Name: "a", Axis: "w", Runs: []Run{run}}, {Name: "b", Axis: "w", Runs: []Run{run}}}}, ""},
		"unnamed":   {Report{Experiments: []Experiment{{}}}, "experiment 0 has no name"},
		"same name": {Report{Experiments: []Experiment{{Name: "a"}, {Name: "a"}}}, `two experiments are named "a"`},
		"same run":  {Report{Experiments: []Experiment{{Name: "a", Axis: "w", Runs: []Run{run, run}}}}, `experiment "a": two runs of policy "p" in scenario "s" with x 1 and seed 2`},
		"no axis":   {Report{Experiments: []Experiment{{Name: "a", Runs: []Run{run}}}}, `experiment "a": policy "p" in scenario "s" has x 1 with axis ""`},
		"x":         {Report{Experiments: []Experiment{{Name: "a", Axis: "w", Runs: []Run{{X: math.NaN()}}}}}, `experiment "a": policy "" in scenario "" has x NaN with axis "w"`},
	} {
		err := test.report.Check()
		if got := errorText(err); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

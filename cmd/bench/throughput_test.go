package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadThroughput(t *testing.T) {
	const result = `{"version": "v1", "dataItems": [
		{"data": {"Average": 270.5, "Perc50": 260}, "unit": "pods/s", "labels": {"Metric": "SchedulingThroughput"}},
		{"data": {"Duration": 37.5}, "unit": "s", "labels": {"Metric": "SchedulingDuration"}},
		{"data": {"Average": 900}, "unit": "ms", "labels": {"Metric": "scheduler_scheduling_attempt_duration_seconds", "result": "error"}},
		{"data": {"Average": 3.5}, "unit": "ms", "labels": {"Metric": "scheduler_scheduling_attempt_duration_seconds", "result": "scheduled"}},
		{"data": {"Average": 0.25}, "unit": "ms", "labels": {"Metric": "scheduler_plugin_execution_duration_seconds", "plugin": "LayerLocality", "extension_point": "Score"}}
	]}`
	dir := func(files ...string) string {
		dir := t.TempDir()
		for i, content := range files {
			if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}

	run := throughputRun{Profile: ourProfile}
	if err := run.read(dir(result)); err != nil {
		t.Fatal(err)
	}
	if run.PodsPerSecond != 270.5 || run.Seconds != 37.5 || run.Attempt != 3.5 || run.Plugin["LayerLocality/Score"] != 0.25 {
		t.Errorf("read %+v", run)
	}

	for name, test := range map[string]struct {
		profile string
		files   []string
		want    string
	}{
		"no result":   {ourProfile, nil, "0 results"},
		"not JSON":    {ourProfile, []string{"?"}, "invalid character"},
		"no sample":   {ourProfile, []string{`{"dataItems": []}`}, "no sample"},
		"two results": {ourProfile, []string{result, result}, "2 results"},
	} {
		run := throughputRun{Profile: test.profile}
		if err := run.read(dir(test.files...)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
}

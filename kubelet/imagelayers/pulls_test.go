/*
Copyright The Kubernetes Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package imagelayers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// reported runs Pulls for a minute, ends pulls at some times, and returns when they were
// reported.
func reported(t *testing.T, ends ...time.Duration) (reports []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		pulls := NewPulls()
		for _, end := range ends {
			time.AfterFunc(end, pulls.Ended)
		}
		pulls.Report(ctx, func(context.Context) { reports = append(reports, time.Since(start)) })
		if ctx.Err() == nil {
			t.Error("Report has ended before its context")
		}
	})
	return reports
}

func TestPulls(t *testing.T) {
	tests := map[string]struct {
		ends []time.Duration
		// earliest is when each report may come; it is late half a second after that.
		earliest []time.Duration
	}{
		"none": {},
		"one":  {ends: []time.Duration{5 * time.Second}, earliest: []time.Duration{5500 * time.Millisecond}},
		// They end within the shortest delay.
		"together": {
			ends:     []time.Duration{time.Second, 1100 * time.Millisecond, 1400 * time.Millisecond},
			earliest: []time.Duration{1500 * time.Millisecond},
		},
		"apart": {
			ends:     []time.Duration{time.Second, 20 * time.Second},
			earliest: []time.Duration{1500 * time.Millisecond, 20500 * time.Millisecond},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reports := reported(t, test.ends...)
			if len(reports) != len(test.earliest) {
				t.Fatalf("reported at %v, want about %v", reports, test.earliest)
			}
			for i, at := range reports {
				if late := at - test.earliest[i]; late < 0 || late >= reportDelay/2 {
					t.Errorf("reported at %v, want from %v on, within %v", at, test.earliest[i], reportDelay/2)
				}
			}
		})
	}
}

// However many pulls end, a node is not busy with its status, and the last pull is reported.
func TestManyPulls(t *testing.T) {
	var ends []time.Duration
	for at := time.Second; at <= 31*time.Second; at += 200 * time.Millisecond {
		ends = append(ends, at)
	}
	reports := reported(t, ends...)
	for i := 1; i < len(reports); i++ {
		if apart := reports[i] - reports[i-1]; apart < reportInterval {
			t.Errorf("reports at %v and %v", reports[i-1], reports[i])
		}
	}
	if len(reports) != 4 || reports[3] < 31*time.Second {
		t.Errorf("reports at %v, want four, of which the last is after the last pull", reports)
	}
}

func TestPullsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pulls := NewPulls()
		pulls.Ended()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		pulls.Report(ctx, func(context.Context) { t.Error("reported after the end") })
	})
}

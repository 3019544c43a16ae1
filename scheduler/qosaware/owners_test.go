package qosaware

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
)

// TestTogether checks how many pods of a Job have to run at once: none is waited for that the Job
// will not make.
func TestTogether(t *testing.T) {
	for name, test := range map[string]struct {
		parallelism, completions *int32
		active, succeeded        int32
		want                     int32
	}{
		"nothing stated":                 {nil, nil, 1, 0, 1},
		"all at once":                    {ptr.To[int32](5), ptr.To[int32](5), 5, 0, 5},
		"one has succeeded":              {ptr.To[int32](5), ptr.To[int32](5), 4, 1, 4},
		"in turns":                       {ptr.To[int32](5), ptr.To[int32](20), 5, 7, 5},
		"fewer than could":               {ptr.To[int32](10), ptr.To[int32](4), 4, 0, 4},
		"a queue of work":                {ptr.To[int32](5), nil, 5, 0, 5},
		"a queue of work, one succeeded": {ptr.To[int32](5), nil, 3, 1, 3},
		"done":                           {ptr.To[int32](5), ptr.To[int32](5), 0, 5, 0},
	} {
		job := &batchv1.Job{
			Spec:   batchv1.JobSpec{Parallelism: test.parallelism, Completions: test.completions},
			Status: batchv1.JobStatus{Active: test.active, Succeeded: test.succeeded, Failed: 7},
		}
		stripped, err := strip(job)
		if got := together(stripped.(*batchv1.Job)); err != nil || got != test.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, test.want)
		}
	}
}

package template

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
)

// TestPlugin has nodes filtered and scored.
func TestPlugin(t *testing.T) {
	f := frameworktest.New(t, klog.Background(), Name, New, nil, []*v1.Node{frameworktest.Node("n1", "4", "1Gi", nil), frameworktest.Node("n2", "", "", nil)})
	pod := frameworktest.Pod("p", "1", "")
	for i, status := range f.Filter(t, pod) {
		if !status.IsSuccess() {
			t.Errorf("node %d: %v", i, status)
		}
	}
	if got := f.Scores(t, pod); !slices.Equal(got, []int64{10, 10}) {
		t.Errorf("%v", got)
	}
	if f.Signature(t, pod) == nil {
		t.Error("pods have no signature: kube-scheduler places each alone")
	}
}

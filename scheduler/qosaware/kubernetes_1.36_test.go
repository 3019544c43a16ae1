//go:build !kubernetes1.35 && !kubernetes1.37

package qosaware

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
)

// TestPodsOfGroupsDoNotPreemptAlone checks that a pod of a PodGroup leaves preemption to its group where
// the cluster preempts by groups, and that it counts as one that found no room; another pod is tried.
func TestPodsOfGroupsDoNotPreemptAlone(t *testing.T) {
	c := newCluster(t, 1, 1, nil)
	var plugin *QosAware
	make := func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		upstream, err := defaultpreemption.New(ctx, &kubescheduler.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}, handle, feature.Features{EnableWorkloadAwarePreemption: true})
		if err != nil {
			return nil, err
		}
		h := &host{ledger: c.Ledger, handle: handle, keys: c.keys, rules: c.keys.rules, limit: &limit{most: 9}, args: c.args}
		plugin = newPlugin(h, upstream, handle)
		return onlyName{}, nil // the profile sorts its queue already
	}
	node := frameworktest.Node("n1", "1", "1Gi", nil)
	frameworktest.New(t, klog.Background(), Name, make, nil, []*v1.Node{node})
	full := framework.NewDefaultNodeToStatus()
	full.Set("n1", fwk.NewStatus(fwk.Unschedulable, "full"))
	for name, pod := range map[string]*v1.Pod{"alone": c.add("alone", "0.5", 0), "of a group": grouped(c.add("group", "0.5", 0))} {
		state := framework.NewCycleState()
		_, _ = plugin.PreFilter(t.Context(), state, pod, nil)
		_, status := plugin.PostFilter(t.Context(), state, pod, full)
		if took := plugin.host.attempts.mean.Swap(0); took == 0 {
			t.Errorf("%s: the attempt is not timed", name)
		}
		if left := strings.Contains(status.Message(), "workload aware preemption"); left != (name == "of a group") {
			t.Errorf("%s: %v", name, status)
		}
		if got := c.Admit(); !got.Full {
			t.Errorf("%s: %+v", name, got)
		}
		c.Remove(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(pod.Name)}})
		c.clock.SetTime(c.clock.Now().Add(time.Hour))
	}
	nowhere := framework.NewDefaultNodeToStatus()
	nowhere.Set("n1", fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "another node"))
	_, _ = plugin.PostFilter(t.Context(), framework.NewCycleState(), c.add("nowhere", "0.5", 0), nowhere)
	if got := c.Admit(); got.Full {
		t.Errorf("a pod that fits nowhere, whoever ends: %+v", got)
	}
}

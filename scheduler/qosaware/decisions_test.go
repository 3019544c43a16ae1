package qosaware

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
)

// logged calls a function with a logger of a level, and returns what it logs.
func logged(t *testing.T, level int, do func(context.Context)) string {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(level)))
	do(klog.NewContext(t.Context(), logger))
	return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
}

// TestVictimsAreLogged checks who would have to go from a node for a pod, and that the log has it at the level of
// nodes alone: the one whose SLO is not in danger, and nobody once the limit is reached by who goes together.
func TestVictimsAreLogged(t *testing.T) {
	c := newCluster(t, 1, 2, nil)
	c.add("safe", "0.1", 0)
	c.add("plain", "", 0)
	c.second()
	c.clock.SetTime(c.clock.Now().Add(time.Hour))
	urgent := c.add("urgent", "0.9", 0)
	for _, test := range []struct {
		room, most, level int
		want, status      string
	}{
		{2, 1, decisions.Nodes, `Victims on a node plugin="QosAware" pod="team/urgent-3" node="node-0" victims=["team/safe-1"] forSLO=1`, ""},
		{2, 1, decisions.Nodes - 1, "", ""},
		{2, 0, decisions.Nodes, "", "no pod of the node may be preempted"},
		{1, 1, decisions.Nodes, "", "full"}, // plain stays
	} {
		c.room, c.preemptor.limit.most = test.room, test.most
		text := logged(t, test.level, func(ctx context.Context) {
			c.preemptor.choices.begin(urgent.UID, c.Now())
			pods, _, status := c.preemptor.selectVictims(ctx, nil, urgent, c.nodes[0].SnapshotConcrete(), nil, func(*v1.Pod) bool { return false })
			if (test.status == "") != (len(pods) == 1 && pods[0].Name == "safe-1") || !strings.Contains(status.Message(), test.status) {
				t.Errorf("%+v: %v %v", test, pods, status)
			}
		})
		if strings.Contains(text, "ictims") != (test.want != "") || !strings.Contains(text, test.want) {
			t.Errorf("%+v: the log has\n%s", test, text)
		}
	}
	// Two of them go together, and one is allowed.
	c.room = 2
	c.remove(c.nodes[0], c.nodes[0].GetPods()[0].GetPod())
	c.remove(c.nodes[0], c.nodes[0].GetPods()[0].GetPod())
	c.waiting = nil
	c.add("a", "0.1", 0)
	c.add("b", "0.1", 0)
	c.second()
	c.clock.SetTime(c.clock.Now().Add(time.Hour))
	c.room, c.preemptor.limit.most = 1, 1
	text := logged(t, decisions.Nodes, func(ctx context.Context) {
		pods, _, status := c.preemptor.selectVictims(ctx, nil, urgent, c.nodes[0].SnapshotConcrete(), nil, func(*v1.Pod) bool { return false })
		if pods != nil || status.Message() != errLimit.Error() {
			t.Errorf("%v %v", pods, status)
		}
	})
	if !strings.Contains(text, `No victims on a node plugin="QosAware" pod="team/urgent-3" node="node-0" reason="`+errLimit.Error()) {
		t.Errorf("the log has\n%s", text)
	}
}

// TestDecisionIsLogged checks that the log has what the preemption for a pod came to, at the level of pods.
func TestDecisionIsLogged(t *testing.T) {
	c := newCluster(t, 1, 1, nil)
	var plugin *QosAware
	build := func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		upstream, err := newUpstream(ctx, handle)
		if err != nil {
			return nil, err
		}
		plugin = newPlugin(&host{ledger: c.Ledger, handle: handle, keys: c.keys, rules: c.keys.rules, limit: &limit{most: 9}, args: c.args}, upstream, handle)
		return onlyName{}, nil
	}
	frameworktest.New(t, klog.Background(), Name, build, nil, []*v1.Node{frameworktest.Node("n1", "1", "1Gi", nil)})
	full := framework.NewDefaultNodeToStatus()
	full.Set("n1", fwk.NewStatus(fwk.Unschedulable, "full"))
	placed := logged(t, decisions.Pods, func(ctx context.Context) {
		plugin.logDecision(klog.FromContext(ctx), c.add("w", "1", 0), framework.NewPostFilterResultWithNominatedNode("n1"), nil)
	})
	if want := `node="n1" reason="" slo=1 ttv=`; !strings.Contains(placed, want) {
		t.Errorf("the log has no %s:\n%s", want, placed)
	}
	for slo, want := range map[string]string{
		"0.5": `slo=0.5 ttv="-2.4s" urgent=true refused=false`,
		"":    `node="" reason="preemption: `,
	} {
		pod := c.add("w", slo, 0)
		for _, level := range []int{decisions.Pods, decisions.Pods - 1} {
			text := logged(t, level, func(ctx context.Context) {
				_, _ = plugin.PostFilter(ctx, framework.NewCycleState(), pod, full)
			})
			const message = "Looked for pods to preempt plugin=\"QosAware\" pod=\"team/w-"
			if strings.Contains(text, message) != (level == decisions.Pods) || strings.Contains(text, want) != (level == decisions.Pods) || slo == "" && strings.Contains(text, "slo=") {
				t.Errorf("%q, level %d: the log has\n%s", slo, level, text)
			}
		}
	}
}

package feasible

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/scheduler/feasible/feasibletest"
)

var requests, pod, node = feasibletest.Requests, feasibletest.Pod, feasibletest.Node

func tainted(taint v1.Taint) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) }
}

func placed(name, cpu string) *v1.Pod {
	p := pod("quay.io/other:1")
	p.Name, p.UID, p.Spec.NodeName, p.Spec.Containers[0].Resources = name, types.UID(name), "n1", requests(cpu)
	return p
}

// Why a node is ruled out is what kube-scheduler's filters would say.
func TestRuleOut(t *testing.T) {
	affinity := func(operator v1.NodeSelectorOperator, values ...string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "name", Operator: operator, Values: values}}}},
			}}}
		}
	}
	dedicated := v1.Taint{Key: "dedicated", Value: "db", Effect: v1.TaintEffectNoSchedule}
	cordon := func(n *v1.Node) { n.Spec.Unschedulable = true }
	tolerates := func(all ...v1.Toleration) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Tolerations = all }
	}
	for _, c := range []struct {
		name   string
		pod    func(*v1.Pod)
		node   func(*v1.Node)
		placed []*v1.Pod
		want   string
	}{
		{name: "it fits"},
		{name: "cordoned", node: cordon, want: "cordoned"},
		{
			name: "cordoned, with the taint of that", want: "cordoned",
			node: func(n *v1.Node) {
				cordon(n)
				n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}}
			},
		},
		{
			name: "cordoned, with another taint", want: "taint dedicated=db:NoSchedule",
			node: func(n *v1.Node) {
				cordon(n)
				tainted(dedicated)(n)
			},
		},
		{name: "cordoned, and a pod that tolerates everything", node: cordon, pod: tolerates(v1.Toleration{Operator: v1.TolerationOpExists})},
		{name: "cordoned, and a pod of a DaemonSet", node: cordon, pod: tolerates(v1.Toleration{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule})},
		{
			name: "cordoned, and a pod that tolerates something else", node: cordon, want: "cordoned",
			pod: tolerates(v1.Toleration{Key: "dedicated", Operator: v1.TolerationOpExists}, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}),
		},
		{name: "a taint", node: tainted(dedicated), want: "taint dedicated=db:NoSchedule"},
		{name: "NoExecute", node: tainted(v1.Taint{Key: "k", Effect: v1.TaintEffectNoExecute}), want: "taint k:NoExecute"},
		{name: "a wish", node: tainted(v1.Taint{Key: "k", Effect: v1.TaintEffectPreferNoSchedule})},
		{name: "tolerated", node: tainted(dedicated), pod: tolerates(v1.Toleration{Key: "dedicated", Operator: v1.TolerationOpExists})},
		{name: "selector", pod: func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "other"} }, want: "selector or node affinity"},
		{name: "affinity", pod: affinity(v1.NodeSelectorOpNotIn, "n1"), want: "selector or node affinity"},
		{name: "affinity that it has", pod: affinity(v1.NodeSelectorOpIn, "n1")},
		{name: "affinity that is not valid", pod: affinity("Like", "n1"), want: "its node affinity is not valid"},
		{name: "as much as is free", placed: []*v1.Pod{placed("a", "1")}},
		{name: "too little", placed: []*v1.Pod{placed("a", "1500m")}, want: "too little cpu"},
		{name: "too many pods", placed: []*v1.Pod{placed("a", "0"), placed("b", "0")}, want: "too little pods"},
		{name: "both", placed: []*v1.Pod{placed("a", "1"), placed("b", "1")}, want: "too little cpu, pods"},
		{
			name: "a device that it does not have", want: "too little example.com/gpu",
			pod: func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			},
		},
		{
			name: "it is there", node: tainted(dedicated), placed: []*v1.Pod{placed("a", "2")},
			pod: func(p *v1.Pod) { p.Spec.NodeName = "n1" },
		},
		{
			name: "everything at once", node: tainted(dedicated), placed: []*v1.Pod{placed("a", "2")},
			pod:  func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "other"} },
			want: "taint dedicated=db:NoSchedule; selector or node affinity; too little cpu",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, n := pod("quay.io/a:1"), node("n1")
			if c.pod != nil {
				c.pod(p)
			}
			if c.node != nil {
				c.node(n)
			}
			used, pods := Amounts{}, int64(0)
			for _, other := range c.placed {
				used.Add(Requests(other))
				pods++
			}
			if got := strings.Join(New(klog.Background(), p).RuleOut(n, used, pods), "; "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

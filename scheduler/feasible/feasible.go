// Package feasible finds out on which nodes a pod cannot run, and why, as far as that is in the node and in what its pods
// request: whether it takes pods, taints, selector and node affinity, requests, and the number of pods. kube-scheduler's
// other filters (volumes, affinity of pods, topology) are not looked at.
package feasible

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Amounts are quantities by resource: CPU in thousandths.
type Amounts map[v1.ResourceName]int64

// Add adds quantities.
func (a Amounts) Add(list v1.ResourceList) {
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			a[name] += quantity.MilliValue()
		} else {
			a[name] += quantity.Value()
		}
	}
}

// Requests returns what a pod requests.
func Requests(pod *v1.Pod) v1.ResourceList {
	return resource.PodRequests(pod, resource.PodResourcesOptions{})
}

// Filter rules out nodes for a pod.
type Filter struct {
	logger   klog.Logger
	pod      *v1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	requests Amounts
}

// New returns the Filter of a pod.
func New(logger klog.Logger, pod *v1.Pod) *Filter {
	f := &Filter{logger: logger, pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), requests: Amounts{}}
	f.requests.Add(Requests(pod))
	return f
}

// cordoned is the taint that a node's field unschedulable stands for.
var cordoned = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}

// RuleOut returns why the pod cannot run on a node, of which other pods use so much, and so many run there. The texts have
// names of taints and resources.
func (f *Filter) RuleOut(node *v1.Node, used Amounts, pods int64) (why []string) {
	if f.pod.Spec.NodeName != "" && f.pod.Spec.NodeName == node.Name {
		return nil // it is there
	}
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		taints = append(slices.Clip(taints), cordoned)
	}
	taint, tainted := corev1helpers.FindMatchingUntoleratedTaint(f.logger, taints, f.pod.Spec.Tolerations, func(t *v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
	}, true)
	switch {
	case node.Spec.Unschedulable && taint.MatchTaint(&cordoned):
		why = append(why, "cordoned")
	case tainted:
		why = append(why, "taint "+taint.ToString())
	}
	if matches, err := f.affinity.Match(node); err != nil {
		why = append(why, "its node affinity is not valid")
	} else if !matches {
		why = append(why, "selector or node affinity")
	}
	allocatable := Amounts{}
	allocatable.Add(node.Status.Allocatable)
	var lacking []string
	for name, n := range f.requests {
		if n > 0 && n > allocatable[name]-used[name] {
			lacking = append(lacking, string(name))
		}
	}
	if most, ok := allocatable[v1.ResourcePods]; ok && pods+1 > most {
		lacking = append(lacking, "pods")
	}
	if len(lacking) > 0 {
		slices.Sort(lacking)
		why = append(why, fmt.Sprintf("too little %s", strings.Join(lacking, ", ")))
	}
	return why
}

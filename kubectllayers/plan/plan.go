// Package plan rates nodes for a pod: what each would have to pull, by the index of the scheduler's
// plugin, and which it cannot run on; why it is on its node; and what ImageLocality gives each.
package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/terminal"
)

// Plan is how nodes are rated for a pod.
type Plan struct {
	// Of is what is rated, as pod/NAME.
	Of     string  `json:"of"`
	Images []Image `json:"images"`
	// Nodes, those that the pod fits on first, and among them those that lack least.
	Nodes []Node `json:"nodes"`
	// BitsPerSecond is the bandwidth that Seconds are for; missing if none was given.
	BitsPerSecond int64 `json:"bitsPerSecond,omitempty"`
}

// Image is what is known of an image of the pod: layers, name, arriving or unknown.
type Image struct {
	Image string      `json:"image"`
	Known index.Known `json:"known"`
}

// Node is how a node is rated. Sizes are compressed bytes; the debug endpoint of the scheduler
// has the same numbers under the same names.
type Node struct {
	Node          string `json:"node"`
	TotalBytes    int64  `json:"totalBytes"`
	PresentBytes  int64  `json:"presentBytes"`
	ArrivingBytes int64  `json:"arrivingBytes"`
	// CrowdedBytes are arriving, but enough pods wait for them already.
	CrowdedBytes int64 `json:"crowdedBytes,omitempty"`
	MissingBytes int64 `json:"missingBytes"`
	// PendingBytes is what the link of the node still has to pull, for any pod.
	PendingBytes int64 `json:"pendingBytes"`
	// Seconds is how long the missing bytes take at the bandwidth, alone on the link.
	Seconds *float64 `json:"seconds,omitempty"`
	// RuledOut is why the pod cannot run there; empty if nothing was found. Looked at: whether
	// the node takes pods, its taints, the pod's selector and node affinity, requests, and the
	// number of pods.
	RuledOut []string `json:"ruledOut,omitempty"`
}

// Of rates all nodes of a cluster for a pod. bitsPerSecond may be 0.
func Of(ctx context.Context, cluster *collect.Cluster, name string, pod *v1.Pod, bitsPerSecond int64) (*Plan, error) {
	known, err := cluster.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	wanted := known.Wanted(pod)
	var m index.Measurement
	known.Measure(wanted, &m)
	plan := &Plan{Of: name, Images: []Image{}, Nodes: []Node{}, BitsPerSecond: bitsPerSecond}
	for _, image := range imageref.OfPod(&pod.Spec) {
		state := index.Unknown
		names := known.Names(image.Name)
		if i := slices.IndexFunc(wanted, func(w index.Wanted) bool { return slices.Equal(w.Names, names) }); i >= 0 {
			state = m.Images[i]
		}
		plan.Images = append(plan.Images, Image{terminal.Line(image.Name, maxName), state})
	}
	filters := newFilters(klog.FromContext(ctx), pod, cluster.Pods)
	for _, node := range cluster.Nodes {
		b, ok := m.Node(node.Name)
		if !ok {
			continue
		}
		n := Node{
			Node: node.Name, TotalBytes: b.Total, PresentBytes: b.Present, ArrivingBytes: b.Arriving, CrowdedBytes: b.Crowded,
			MissingBytes: b.Missing(), PendingBytes: b.Pending, RuledOut: filters.ruleOut(node),
		}
		if bitsPerSecond > 0 {
			seconds := float64(n.MissingBytes) * 8 / float64(bitsPerSecond)
			n.Seconds = &seconds
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	slices.SortStableFunc(plan.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(min(1, len(a.RuledOut)), min(1, len(b.RuledOut))), cmp.Compare(a.MissingBytes, b.MissingBytes),
			cmp.Compare(a.PendingBytes, b.PendingBytes), cmp.Compare(a.Node, b.Node))
	})
	return plan, nil
}

// maxName bounds texts of the cluster in answers.
const maxName = 300

// Mean returns what the nodes that the pod fits on lack on average, and how many they are.
func (p *Plan) Mean() (missing float64, nodes int) {
	for i := range p.Nodes {
		if n := &p.Nodes[i]; len(n.RuledOut) == 0 {
			missing += float64(n.MissingBytes)
			nodes++
		}
	}
	return missing / float64(max(1, nodes)), nodes
}

// amounts are quantities by resource: CPU in thousandths.
type amounts map[v1.ResourceName]int64

func (a amounts) add(list v1.ResourceList) {
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			a[name] += quantity.MilliValue()
		} else {
			a[name] += quantity.Value()
		}
	}
}

// filters rule out nodes on which a pod cannot run.
type filters struct {
	logger   klog.Logger
	pod      *v1.Pod
	affinity nodeaffinity.RequiredNodeAffinity
	requests amounts
	used     map[string]amounts
	pods     map[string]int64
}

func newFilters(logger klog.Logger, pod *v1.Pod, placed []*v1.Pod) *filters {
	f := &filters{
		logger: logger, pod: pod, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), requests: requestsOf(pod),
		used: map[string]amounts{}, pods: map[string]int64{},
	}
	for _, other := range placed {
		if other.UID == pod.UID && pod.UID != "" {
			continue // it does not keep itself away
		}
		used := f.used[other.Spec.NodeName]
		if used == nil {
			used = amounts{}
			f.used[other.Spec.NodeName] = used
		}
		used.add(resource.PodRequests(other, resource.PodResourcesOptions{}))
		f.pods[other.Spec.NodeName]++
	}
	return f
}

func requestsOf(pod *v1.Pod) amounts {
	a := amounts{}
	a.add(resource.PodRequests(pod, resource.PodResourcesOptions{}))
	return a
}

// cordoned is the taint that a node's field unschedulable stands for.
var cordoned = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}

// ruleOut returns why the pod cannot run on a node.
func (f *filters) ruleOut(node *v1.Node) (why []string) {
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
		why = append(why, "taint "+terminal.Line(taint.ToString(), 100))
	}
	if matches, err := f.affinity.Match(node); err != nil {
		why = append(why, "its node affinity is not valid")
	} else if !matches {
		why = append(why, "selector or node affinity")
	}
	allocatable := amounts{}
	allocatable.add(node.Status.Allocatable)
	var lacking []string
	for name, n := range f.requests {
		if n > 0 && n > allocatable[name]-f.used[node.Name][name] {
			lacking = append(lacking, terminal.Line(string(name), 100))
		}
	}
	if most, ok := allocatable[v1.ResourcePods]; ok && f.pods[node.Name]+1 > most {
		lacking = append(lacking, "pods")
	}
	if len(lacking) > 0 {
		slices.Sort(lacking)
		why = append(why, fmt.Sprintf("too little %s", strings.Join(lacking, ", ")))
	}
	return why
}

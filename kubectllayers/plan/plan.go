// Package plan rates nodes for a pod: what each would have to pull, by the index of the scheduler's
// plugin, and which it cannot run on; why it is on its node; and what ImageLocality gives each.
package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/feasible"
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
	// RatedBy is the scheduler that rated the nodes; missing if this program did.
	RatedBy string `json:"ratedBy,omitempty"`
	// NotAsked is then why no scheduler was asked.
	NotAsked string `json:"notAsked,omitempty"`
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

// Asked has the scheduler rate all nodes for the pod of a target.
func Asked(ctx context.Context, scheduler *collect.Scheduler, of *collect.Target) (*Plan, error) {
	var rating struct {
		Profile string
		Images  []struct {
			Names []imageref.Canonical
			Known index.Known
		}
		Nodes []Node
	}
	if err := scheduler.Rate(ctx, of, &rating); err != nil {
		return nil, err
	}
	plan := &Plan{Of: of.String(), Images: []Image{}, Nodes: rating.Nodes, RatedBy: fmt.Sprintf("%s, profile %s", scheduler.Name, terminal.Line(rating.Profile, maxName))}
	for _, image := range imageref.OfPod(&of.Pod.Spec) {
		state := index.Unknown
		for _, known := range rating.Images {
			if canonical, err := imageref.Parse(image.Name); err == nil && slices.Contains(known.Names, canonical) {
				state = known.Known
			}
		}
		plan.Images = append(plan.Images, Image{terminal.Line(image.Name, maxName), state})
	}
	return plan.sort(), nil
}

// Of rates all nodes of a cluster for the pod of a target, as the scheduler does with default arguments.
func Of(ctx context.Context, cluster *collect.Cluster, of *collect.Target) (*Plan, error) {
	pod := of.Pod
	known, err := cluster.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	wanted := known.Wanted(pod)
	var m index.Measurement
	known.Measure(wanted, &m)
	plan := &Plan{Of: of.String(), Images: []Image{}, Nodes: []Node{}}
	for _, image := range imageref.OfPod(&pod.Spec) {
		state := index.Unknown
		names := known.Names(image.Name)
		if i := slices.IndexFunc(wanted, func(w index.Wanted) bool { return slices.Equal(w.Names, names) }); i >= 0 {
			state = m.Images[i]
		}
		plan.Images = append(plan.Images, Image{terminal.Line(image.Name, maxName), state})
	}
	used, pods := map[string]feasible.Amounts{}, map[string]int64{}
	for _, other := range cluster.Pods {
		if other.UID == pod.UID && pod.UID != "" {
			continue // it does not keep itself away
		}
		on := other.Spec.NodeName
		if used[on] == nil {
			used[on] = feasible.Amounts{}
		}
		used[on].Add(feasible.Requests(other))
		pods[on]++
	}
	filter := feasible.New(klog.FromContext(ctx), pod)
	for _, node := range cluster.Nodes {
		if b, ok := m.Node(node.Name); ok {
			plan.Nodes = append(plan.Nodes, Node{
				Node: node.Name, TotalBytes: b.Total, PresentBytes: b.Present, ArrivingBytes: b.Arriving, CrowdedBytes: b.Crowded,
				MissingBytes: b.Missing(), PendingBytes: b.Pending, RuledOut: filter.RuleOut(node, used[node.Name], pods[node.Name]),
			})
		}
	}
	return plan.sort(), nil
}

// sort puts the best nodes first, and cleans texts.
func (p *Plan) sort() *Plan {
	for i := range p.Nodes {
		for j, why := range p.Nodes[i].RuledOut {
			p.Nodes[i].RuledOut[j] = terminal.Line(why, maxName)
		}
	}
	slices.SortStableFunc(p.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(min(1, len(a.RuledOut)), min(1, len(b.RuledOut))), cmp.Compare(a.MissingBytes, b.MissingBytes),
			cmp.Compare(a.PendingBytes, b.PendingBytes), cmp.Compare(a.Node, b.Node))
	})
	return p
}

// At adds how many seconds the missing bytes take at so many bits a second.
func (p *Plan) At(bitsPerSecond int64) {
	if p.BitsPerSecond = bitsPerSecond; bitsPerSecond == 0 {
		return
	}
	for i := range p.Nodes {
		seconds := float64(p.Nodes[i].MissingBytes) * 8 / float64(bitsPerSecond)
		p.Nodes[i].Seconds = &seconds
	}
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

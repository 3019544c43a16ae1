// Package inventory answers what nodes hold and what images consist of. It asks the index of
// the scheduler's plugin, so that its answers are what the plugin decides by.
package inventory

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/terminal"
)

// Inventory is what is known of a cluster.
type Inventory struct {
	cluster *collect.Cluster
	known   *locality.Snapshot
	// records are indexes of the cluster's Records by what they name; nil until they are asked for.
	records map[imageref.Canonical][]int
}

// New returns the Inventory of what was read.
func New(ctx context.Context, cluster *collect.Cluster) (*Inventory, error) {
	known, err := cluster.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return &Inventory{cluster: cluster, known: known}, nil
}

// Source is where it is from what a node holds.
type Source string

const (
	// FromAgent is layer-agent on the node, in a NodeLayers that it renews.
	FromAgent Source = "agent"
	// FromKubelet is the patched kubelet, which states layers in NodeStatus.
	FromKubelet Source = "kubelet"
	// Joined means that the node names digests, and ImageManifests have their layers.
	Joined Source = "joined"
	// FromNames means that the node names images, and nothing has what they consist of.
	FromNames Source = "names"
	// FromNothing means that the node names no image.
	FromNothing Source = "nothing"
)

// Node is what a node holds. Sizes are compressed bytes; images that are known by name only
// count with an estimate.
type Node struct {
	Name string `json:"name"`
	// Images, each once; Layers, each once.
	Images int `json:"images"`
	Layers int `json:"layers"`
	// Bytes of the layers; ElsewhereBytes are those of them that another node holds, too, missing if
	// other nodes were not read.
	Bytes          int64  `json:"bytes"`
	ElsewhereBytes *int64 `json:"elsewhereBytes,omitempty"`
	// TotalImages, TotalLayers and TotalBytes are what layer-agent states in sum, also of what it does not list.
	TotalImages int    `json:"totalImages,omitempty"`
	TotalLayers int    `json:"totalLayers,omitempty"`
	TotalBytes  int64  `json:"totalBytes,omitempty"`
	Source      Source `json:"source"`
	// Known counts the images by what they are known from: layers, manifest, name, use.
	Known map[locality.Provenance]int `json:"known"`
	// Reported is when that was last said, on the clock of the node.
	Reported time.Time `json:"reported,omitzero"`
	// StaleAgent means that there is a NodeLayers which is not renewed: it does not count.
	StaleAgent bool `json:"staleAgent,omitempty"`
	// CutImages and CutLayers are those that the node holds and does not list; small layers are
	// among the latter. FullList means that the list of the kubelet has as many images as fit,
	// so that there may be more.
	CutImages int  `json:"cutImages,omitempty"`
	CutLayers int  `json:"cutLayers,omitempty"`
	FullList  bool `json:"fullList,omitempty"`
	// Reuse is Digest or Chain.
	Reuse v1alpha1.LayerReuse `json:"reuse"`
	// InvalidLines of the NodeLayers are left out; Problem is why all of it is.
	InvalidLines int    `json:"invalidLines,omitempty"`
	Problem      string `json:"problem,omitempty"`
	Runtime      string `json:"runtime,omitempty"`
}

// Nodes returns all nodes by name.
func (i *Inventory) Nodes() []Node {
	nodes := make([]Node, 0, len(i.cluster.Nodes))
	for _, node := range i.cluster.Nodes {
		nodes = append(nodes, i.node(node))
	}
	return nodes
}

// kubeletLists is how many images a kubelet lists by default (nodeStatusMaxImages).
const kubeletLists = 50

// maxShown bounds texts of a cluster in answers.
const maxShown = 300

func (i *Inventory) node(node *v1.Node) Node {
	sum := i.known.Index().Sum(node.Name)
	n := Node{
		Name: node.Name, Images: sum.Images, Layers: sum.Layers, Bytes: sum.Bytes,
		Known: i.known.ImagesOf(node.Name), Reuse: v1alpha1.ReuseByDigest, Runtime: terminal.Line(node.Status.NodeInfo.ContainerRuntimeVersion, maxShown),
	}
	if i.cluster.AllNodes {
		n.ElsewhereBytes = &sum.ElsewhereBytes
	}
	if i.known.Index().Chains(node.Name) {
		n.Reuse = v1alpha1.ReuseInChains
	}
	agent, has := i.cluster.Agents[node.Name]
	n.InvalidLines, n.Problem = agent.Invalid, terminal.Line(agent.Problem, maxShown)
	if has && i.known.HasFreshReport(node) {
		n.Source, n.Reported = FromAgent, agent.RenewTime
		n.TotalImages, n.TotalLayers, n.TotalBytes = agent.TotalImages, agent.TotalLayers, agent.TotalBytes
		n.CutImages, n.CutLayers = max(0, agent.TotalImages-agent.ListedImages), max(0, agent.TotalLayers-agent.ListedLayers)
		return n
	}
	if report := i.cluster.Reports.Of(node.Name); report != nil {
		n.StaleAgent = report.UID == node.UID && !report.Fresh
		if report.UID != node.UID {
			n.Problem = "it is of a Node that had this name before"
		}
	}
	n.Source = sourceOf(n.Known)
	n.FullList = len(node.Status.Images) >= kubeletLists
	for _, condition := range node.Status.Conditions {
		if condition.LastHeartbeatTime.After(n.Reported) {
			n.Reported = condition.LastHeartbeatTime.Time
		}
	}
	return n
}

func sourceOf(known map[locality.Provenance]int) Source {
	switch {
	case known[locality.FromLayers] > 0:
		return FromKubelet
	case known[locality.FromManifest] > 0:
		return Joined
	case known[locality.FromName]+known[locality.FromUse] > 0:
		return FromNames
	}
	return FromNothing
}

// Alone reports whether the answer about a node needs no other nodes. It does where an image is known
// by its name or by its use: another node may have its layers, and how much images are compressed.
func (i *Inventory) Alone(node string) bool {
	known := i.known.ImagesOf(node)
	return known[locality.FromName]+known[locality.FromUse] == 0
}

// HeldImage is an image on a node. Sizes are compressed bytes.
type HeldImage struct {
	// Names as they are known, tags before digests.
	Names []string `json:"names"`
	Bytes int64    `json:"bytes"`
	// SharedBytes are in layers that other images on the node have, too; FreedBytes is what
	// would go with the image.
	SharedBytes int64 `json:"sharedBytes"`
	FreedBytes  int64 `json:"freedBytes"`
	Layers      int   `json:"layers"`
	// Known is what this is known from: layers, manifest, name or use.
	Known locality.Provenance `json:"known"`
}

// Arriving is what a pod that was placed on a node brings there: compressed bytes of layers that the node
// does not report yet.
type Arriving struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Bytes     int64     `json:"bytes"`
	Since     time.Time `json:"since,omitzero"`
}

// NodeImages is a node, its images, the largest first, and what is arriving, the oldest first.
type NodeImages struct {
	Node
	Held     []HeldImage `json:"held"`
	Arriving []Arriving  `json:"arriving,omitempty"`
}

// Node returns a node that was read with its images; ok is false if it was not.
func (i *Inventory) Node(name string) (answer NodeImages, ok bool) {
	at := slices.IndexFunc(i.cluster.Nodes, func(n *v1.Node) bool { return n.Name == name })
	if at < 0 {
		return answer, false
	}
	answer = NodeImages{Node: i.node(i.cluster.Nodes[at]), Held: []HeldImage{}}
	users := map[string]int{}
	for image := range i.known.NodeImages(name) {
		for _, layer := range image.Layers {
			users[layer.Digest]++
		}
	}
	for image, evidence := range i.known.NodeImages(name) {
		held := HeldImage{Names: shown(image.Names), Known: evidence}
		if image.Report.Layers {
			held.Layers = len(image.Layers)
		}
		for _, layer := range image.Layers {
			held.Bytes += layer.Size
			if users[layer.Digest] > 1 {
				held.SharedBytes += layer.Size
			}
		}
		held.FreedBytes = held.Bytes - held.SharedBytes
		answer.Held = append(answer.Held, held)
	}
	slices.SortFunc(answer.Held, func(a, b HeldImage) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), slices.Compare(a.Names, b.Names))
	})
	answer.Arriving = i.arriving(name)
	return answer, true
}

// arriving returns what the pods bring to a node that were placed there and do not run yet.
func (i *Inventory) arriving(node string) (found []Arriving) {
	var m index.Measurement
	for _, pod := range i.cluster.Pods {
		if pod.Spec.NodeName != node || pod.Status.Phase != v1.PodPending {
			continue
		}
		i.known.Measure(i.known.Wanted(pod), &m)
		b, ok := m.Node(node)
		if !ok || b.Total == b.Present {
			continue
		}
		a := Arriving{Namespace: pod.Namespace, Pod: pod.Name, Bytes: b.Total - b.Present}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == v1.PodScheduled {
				a.Since = condition.LastTransitionTime.Time
			}
		}
		found = append(found, a)
	}
	slices.SortFunc(found, func(a, b Arriving) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return found
}

// Freed returns what would go from a node with several images: the layers that no other image
// there has, each once. ok is false if the node does not hold one of the images.
func (i *Inventory) Freed(node string, references []string) (bytes int64, ok bool) {
	wanted := make([][]imageref.Canonical, len(references))
	for at, reference := range references {
		wanted[at] = i.known.Names(reference)
	}
	found, freed, kept := map[int]bool{}, map[string]int64{}, map[string]bool{}
	for image := range i.known.NodeImages(node) {
		goes := false
		for at, names := range wanted {
			if slices.ContainsFunc(names, func(name imageref.Canonical) bool { return slices.Contains(image.Names, name) }) {
				goes, found[at] = true, true
			}
		}
		for _, layer := range image.Layers {
			if goes {
				freed[layer.Digest] = layer.Size
			} else {
				kept[layer.Digest] = true
			}
		}
	}
	for digest, size := range freed {
		if !kept[digest] {
			bytes += size
		}
	}
	return bytes, len(found) == len(references)
}

// shown returns names as they are shown, tags before digests.
func shown(names []imageref.Canonical) []string {
	all := make([]string, 0, len(names))
	for _, name := range names {
		all = append(all, terminal.Line(string(name), maxShown))
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(digest(a), digest(b)), cmp.Compare(a, b)) })
	return all
}

// digest is 1 for a name that is a digest alone.
func digest(name string) int {
	if v1alpha1.IsDigest(name) {
		return 1
	}
	return 0
}

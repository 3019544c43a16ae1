// Package workload defines what happens to a simulated cluster: which nodes there
// are, which pods are created when, what is rolled out. It does not depend on
// schedulers. The benchmark on a real cluster plays Plans too.
package workload

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
)

// Plan is one workload. Every policy gets the same Plan.
type Plan struct {
	// Nodes at the start.
	Nodes []Node `json:"nodes"`
	// Images that pods may use. Pods refer to them by Image.Image. What a
	// reference stands for never changes: a tag that moves is a new reference (by
	// digest).
	Images []dataset.Image `json:"images"`
	// Events are sorted by time.
	Events []Event `json:"events"`
	// History is how long the nodes only get into a state: metrics count from then on.
	History time.Duration `json:"history,omitempty"`
}

// Node is a machine.
type Node struct {
	Name string `json:"name"`
	// MilliCPU and Memory (bytes) are allocatable.
	MilliCPU int64 `json:"milliCPU"`
	Memory   int64 `json:"memory"`
	// Pods is how many pods it can run.
	Pods int64 `json:"pods"`
	// Disk is how much unpacked images may take, in bytes.
	Disk int64 `json:"disk"`
	// Link is the bandwidth from registries, in bytes per second.
	Link float64 `json:"link"`
	// Rack, if set, is where it stands.
	Rack string `json:"rack,omitempty"`
	// Holds are the names of images that are there when the node comes.
	Holds []string `json:"holds,omitempty"`
}

// Event is something a user or administrator does. Exactly one field besides At
// is set.
type Event struct {
	// At is the time since the start.
	At time.Duration `json:"at"`
	// Pod creates a pod.
	Pod *Pod `json:"pod,omitempty"`
	// Deploy creates a Deployment, or changes the one of that name.
	Deploy *Deployment `json:"deploy,omitempty"`
	// Join adds a node, which is empty or has the images in Holds.
	Join *Node `json:"join,omitempty"`
}

// Pod is a pod with one container.
type Pod struct {
	// Image is the reference.
	Image string `json:"image"`
	// App, if set, is the ReplicaSet that the pod belongs to: then the
	// scheduler's default topology spread applies.
	App string `json:"app,omitempty"`
	// Group, if set, is the pod group: its pods come at one moment, and are placed at once, all in one rack.
	Group string `json:"group,omitempty"`
	// MilliCPU and Memory (bytes) are requested.
	MilliCPU int64 `json:"milliCPU"`
	Memory   int64 `json:"memory"`
	// Lifetime is the time from its start to its end; 0: it stays.
	Lifetime time.Duration `json:"lifetime,omitempty"`
}

// Deployment is a number of pods with one image. A change of the image is rolled
// out pod by pod: a new pod is created, and when it runs, an old one is deleted
// (maxSurge 1, maxUnavailable 0).
type Deployment struct {
	Name     string `json:"name"`
	Image    string `json:"image"`
	Replicas int    `json:"replicas"`
	MilliCPU int64  `json:"milliCPU"`
	Memory   int64  `json:"memory"`
	// Apart means that no two of its pods run on one node (required
	// anti-affinity).
	Apart bool `json:"apart,omitempty"`
}

// Limits of a Plan: with them no sum overflows, and a small file cannot ask for
// years of work.
const (
	maxNodes    = 10_000
	maxPods     = 1_000_000 // created over all events
	maxReplicas = 10_000
	maxTime     = 366 * 24 * time.Hour
	maxMilliCPU = 1_000_000_000
	maxBytes    = 1 << 50 // memory and disk
	// Limits of an image: layers, and compressed bytes.
	maxLayers, maxImageBytes = 1_000, 1 << 40
)

// Validate returns what is wrong with a Plan from outside.
func (p *Plan) Validate() error {
	if len(p.Nodes) == 0 {
		return errors.New("no nodes")
	}
	if p.History < 0 || p.History > maxTime {
		return fmt.Errorf("history %s: want 0 to %s", p.History, maxTime)
	}
	images := map[string]bool{}
	for _, image := range p.Images {
		if images[image.Image] {
			return fmt.Errorf("image %s is there twice", image.Image)
		}
		if err := validateLayers(image.Layers); err != nil {
			return fmt.Errorf("image %s: %w", image.Image, err)
		}
		images[image.Image] = true
	}
	names := map[string]bool{}
	node := func(n *Node) error {
		switch {
		case n.Name == "" || names[n.Name]:
			return fmt.Errorf("node %q: no name, or one that another has", n.Name)
		case len(names) == maxNodes:
			return fmt.Errorf("more than %d nodes", maxNodes)
		case n.MilliCPU <= 0 || n.Memory <= 0 || n.Pods <= 0 || n.Disk <= 0 || !(n.Link > 0):
			return fmt.Errorf("node %s: milliCPU, memory, pods, disk and link have to be positive", n.Name)
		case n.MilliCPU > maxMilliCPU || n.Memory > maxBytes || n.Disk > maxBytes:
			return fmt.Errorf("node %s: at most %d milliCPU, and %d bytes of memory and disk", n.Name, maxMilliCPU, int64(maxBytes))
		}
		if err := validateLabel("rack", n.Rack); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		names[n.Name] = true
		for _, image := range n.Holds {
			if !images[image] {
				return fmt.Errorf("node %s holds %s, which is not among the images", n.Name, image)
			}
		}
		return nil
	}
	for i := range p.Nodes {
		if err := node(&p.Nodes[i]); err != nil {
			return err
		}
	}
	var last time.Duration
	pods := 0
	for i, e := range p.Events {
		var image string
		var err error
		switch {
		case e.At < last:
			return fmt.Errorf("event %d is at %s, before the one before it", i, e.At)
		case e.At > maxTime:
			err = fmt.Errorf("at %s: the last may be at %s", e.At, maxTime)
		case e.Pod != nil && e.Deploy == nil && e.Join == nil:
			image = e.Pod.Image
			pods++
			err = cmp.Or(validateLabel("app", e.Pod.App), validateLabel("group", e.Pod.Group), validateRequests(e.Pod.MilliCPU, e.Pod.Memory))
			if err == nil && (e.Pod.Lifetime < 0 || e.Pod.Lifetime > maxTime) {
				err = fmt.Errorf("lifetime %s: want 0 to %s", e.Pod.Lifetime, maxTime)
			}
		case e.Pod == nil && e.Deploy != nil && e.Join == nil:
			image = e.Deploy.Image
			err = cmp.Or(validateLabel("name", e.Deploy.Name), validateRequests(e.Deploy.MilliCPU, e.Deploy.Memory))
			switch n := e.Deploy.Replicas; {
			case err != nil:
			case e.Deploy.Name == "":
				err = errors.New("a deployment without name")
			case n < 0 || n > maxReplicas:
				err = fmt.Errorf("%d replicas: want 0 to %d", n, maxReplicas)
			default:
				pods += n
			}
		case e.Pod == nil && e.Deploy == nil && e.Join != nil:
			err = node(e.Join)
		default:
			err = errors.New("want one of pod, deploy, join")
		}
		if err == nil && e.Join == nil && !images[image] {
			err = fmt.Errorf("%q is not among the images", image)
		}
		if err == nil && pods > maxPods {
			err = fmt.Errorf("more than %d pods up to here", maxPods)
		}
		if err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		last = e.At
	}
	return nil
}

func validateLayers(layers []dataset.Layer) error {
	var sum int64
	for _, l := range layers {
		if l.Size < 0 || l.Size > maxImageBytes-sum {
			return fmt.Errorf("layer %s of %d bytes: want 0 or more, and no more than %d in an image", l.Digest, l.Size, int64(maxImageBytes))
		}
		sum += l.Size
	}
	if len(layers) > maxLayers {
		return fmt.Errorf("%d layers, more than %d", len(layers), maxLayers)
	}
	return nil
}

func validateRequests(milliCPU, memory int64) error {
	if milliCPU < 0 || milliCPU > maxMilliCPU || memory < 0 || memory > maxBytes {
		return fmt.Errorf("requests of %d milliCPU and %d bytes: want 0 to %d and %d", milliCPU, memory, maxMilliCPU, int64(maxBytes))
	}
	return nil
}

// validateLabel checks a value that pods get as a label.
func validateLabel(field, value string) error {
	if why := validation.IsValidLabelValue(value); len(why) > 0 {
		return fmt.Errorf("%s %q: %s", field, value, why[0])
	}
	return nil
}

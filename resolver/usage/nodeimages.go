package usage

import (
	"container/heap"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// A node that states no layers has those of the manifests that its digests name. So the
// resolver also asks for images that nodes hold and no workload names: the images that run
// or are held on most nodes first, and all of them after those of workloads.

const (
	// MaxAsked is how many of them are in the queue of a registry at once: the requests of
	// workloads wait for no more than these.
	MaxAsked = 2
	// MaxNodeImages bounds what is asked for.
	MaxNodeImages = 50_000
)

// nodePull stands for no workload: no pull secrets, and nobody to notify. No service account
// has such a name.
var nodePull = Pull{ServiceAccount: "(nodes)"}

// NodeImages has the images that nodes hold, on how many nodes each is, and which are to be asked
// for.
type NodeImages struct {
	mu sync.Mutex
	// nodes has the references of the images on each node, by digest.
	nodes map[string][]string
	// counts has the number of nodes for each reference.
	counts map[string]int
	// over are those for which there is no room.
	over map[string]struct{}
	// waiting has the images to ask for, by registry.
	waiting map[string]*nodeImageQueue
}

// nodeImageQueue are the images of a registry that are to be asked for.
type nodeImageQueue struct {
	// images are all of them, by their first reference.
	images map[string]*nodeImage
	// waiting is a heap of those that are not in the queue of the registry.
	waiting nodeImageHeap
}

// nodeImage is an image that is to be asked for.
type nodeImage struct {
	Image
	// nodes is on how many it is.
	nodes int
	// at is its place in the heap, -1 if it is not there.
	at int
}

// NewNodeImages returns NodeImages of no node.
func NewNodeImages() *NodeImages {
	return &NodeImages{nodes: map[string][]string{}, counts: map[string]int{}, over: map[string]struct{}{}, waiting: map[string]*nodeImageQueue{}}
}

// Set replaces what a node holds. It returns the references that are new, as far as there is room,
// and those of earlier ones that no node holds any longer.
func (h *NodeImages) Set(node string, references []string) (added, gone []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.nodes[node]
	if h.nodes[node] = references; len(references) == 0 {
		delete(h.nodes, node)
	}
	if slices.Equal(old, references) {
		return nil, nil
	}
	for _, reference := range references {
		if slices.Contains(old, reference) {
			continue
		}
		if h.counts[reference]++; h.counts[reference] == 1 {
			h.over[reference] = struct{}{}
		}
		h.countedLocked(reference)
	}
	for _, reference := range old {
		if slices.Contains(references, reference) {
			continue
		}
		if h.counts[reference]--; h.counts[reference] == 0 {
			delete(h.counts, reference)
			if _, unknown := h.over[reference]; unknown {
				delete(h.over, reference)
			} else {
				gone = append(gone, reference)
			}
		}
		h.countedLocked(reference)
	}
	for reference := range h.over {
		if len(h.counts)-len(h.over) >= MaxNodeImages {
			break
		}
		delete(h.over, reference)
		added = append(added, reference)
	}
	return added, gone
}

// countedLocked puts an image in its place after its count has changed.
func (h *NodeImages) countedLocked(reference string) {
	q := h.waiting[ImageOf(reference).Registry()]
	if q == nil {
		return
	}
	if found := q.images[reference]; found != nil && found.at >= 0 {
		found.nodes = h.counts[reference]
		heap.Fix(&q.waiting, found.at)
	}
}

// Want notes that images of one registry are to be asked for, and returns what to hand over
// now to the queue of the registry.
func (h *NodeImages) Want(images ...Image) (now []Image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := &nodeImageQueue{}
	for _, image := range images {
		q = h.addLocked(image)
	}
	return q.next()
}

// Waiting returns for how many registries there are images to ask for.
func (h *NodeImages) Waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting)
}

// addLocked adds an image to those of its registry that wait.
func (h *NodeImages) addLocked(image Image) *nodeImageQueue {
	q := h.waiting[image.Registry()]
	if q == nil {
		q = &nodeImageQueue{images: map[string]*nodeImage{}}
		h.waiting[image.Registry()] = q
	}
	if first := image.References[0]; q.images[first] == nil {
		q.images[first] = &nodeImage{Image: image, nodes: h.counts[first]}
		heap.Push(&q.waiting, q.images[first])
	}
	return q
}

// Done forgets an image that is not to be asked for any longer, and returns what to hand
// over instead.
func (h *NodeImages) Done(image Image) (next []Image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.waiting[image.Registry()]
	if q == nil || q.images[image.References[0]] == nil {
		return nil
	}
	if at := q.images[image.References[0]].at; at >= 0 {
		heap.Remove(&q.waiting, at)
	}
	if delete(q.images, image.References[0]); len(q.images) == 0 {
		delete(h.waiting, image.Registry())
	}
	return q.next()
}

// next takes images from those that wait: the ones that are on most nodes.
func (q *nodeImageQueue) next() (images []Image) {
	for len(q.images)-len(q.waiting) < MaxAsked && len(q.waiting) > 0 {
		images = append(images, heap.Pop(&q.waiting).(*nodeImage).Image)
	}
	return images
}

// nodeImageHeap is a heap of images, the one on most nodes first.
type nodeImageHeap []*nodeImage

func (h nodeImageHeap) Len() int { return len(h) }
func (h nodeImageHeap) Less(a, b int) bool {
	return h[a].nodes > h[b].nodes || h[a].nodes == h[b].nodes && h[a].Key < h[b].Key
}

func (h nodeImageHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].at, h[b].at = a, b
}

// Push implements heap.Interface.
func (h *nodeImageHeap) Push(x any) {
	image := x.(*nodeImage)
	image.at = len(*h)
	*h = append(*h, image)
}

// Pop implements heap.Interface.
func (h *nodeImageHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	last.at = -1
	return last
}

// Reset forgets what is to be asked for.
func (h *NodeImages) Reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.waiting)
}

// ImageOnNodes stands for the workload of an image that nodes hold.
func ImageOnNodes(reference string) WorkloadImages {
	return WorkloadImages{
		Workload: corev1.ObjectReference{Kind: "Node", Name: reference}, Controlled: true, Pull: nodePull, Images: []string{reference},
	}
}

package controller

import (
	"container/heap"
	"slices"
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
)

// A node that states no layers has those of the manifests that its digests name. So the
// resolver also asks for images that nodes hold and no workload names: the images that run
// or are held on most nodes first, and all of them after those of workloads.

const (
	// maxAsked is how many of them are in the queue of a registry at once: the requests of
	// workloads wait for no more than these.
	maxAsked = 2
	// maxImagesPerNode and maxNodeImages bound what is asked for.
	maxImagesPerNode = 512
	maxNodeImages    = 50_000
)

// nodePull stands for no workload: no pull secrets, and nobody to tell. No service account
// has such a name.
var nodePull = pull{serviceAccount: "(nodes)"}

// nodeImages has the images that nodes hold, on how many nodes each is, and which are to be asked
// for.
type nodeImages struct {
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
	image
	// nodes is on how many it is.
	nodes int
	// at is its place in the heap, -1 if it is not there.
	at int
}

func newNodeImages() *nodeImages {
	return &nodeImages{nodes: map[string][]string{}, counts: map[string]int{}, over: map[string]struct{}{}, waiting: map[string]*nodeImageQueue{}}
}

// set replaces what a node holds. It returns the references that are new, as far as there is room,
// and those of earlier ones that no node holds any longer.
func (h *nodeImages) set(node string, references []string) (added, gone []string) {
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
		h.counted(reference)
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
		h.counted(reference)
	}
	for reference := range h.over {
		if len(h.counts)-len(h.over) >= maxNodeImages {
			break
		}
		delete(h.over, reference)
		added = append(added, reference)
	}
	return added, gone
}

// counted puts an image in its place after its count has changed. The caller holds the mutex.
func (h *nodeImages) counted(reference string) {
	q := h.waiting[imageOf(reference).registry()]
	if q == nil {
		return
	}
	if found := q.images[reference]; found != nil && found.at >= 0 {
		found.nodes = h.counts[reference]
		heap.Fix(&q.waiting, found.at)
	}
}

// want notes that an image is to be asked for, and returns what to hand over now to the
// queue of its registry.
func (h *nodeImages) want(image image) (now []image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.add(image).next()
}

// add adds an image to those of its registry that wait. The caller holds the mutex.
func (h *nodeImages) add(image image) *nodeImageQueue {
	q := h.waiting[image.registry()]
	if q == nil {
		q = &nodeImageQueue{images: map[string]*nodeImage{}}
		h.waiting[image.registry()] = q
	}
	if first := image.references[0]; q.images[first] == nil {
		q.images[first] = &nodeImage{image: image, nodes: h.counts[first]}
		heap.Push(&q.waiting, q.images[first])
	}
	return q
}

// done forgets an image that is not to be asked for any longer, and returns what to hand
// over instead.
func (h *nodeImages) done(image image) (next []image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.waiting[image.registry()]
	if q == nil || q.images[image.references[0]] == nil {
		return nil
	}
	if at := q.images[image.references[0]].at; at >= 0 {
		heap.Remove(&q.waiting, at)
	}
	if delete(q.images, image.references[0]); len(q.images) == 0 {
		delete(h.waiting, image.registry())
	}
	return q.next()
}

// next takes images from those that wait: the ones that are on most nodes.
func (q *nodeImageQueue) next() (images []image) {
	for len(q.images)-len(q.waiting) < maxAsked && len(q.waiting) > 0 {
		images = append(images, heap.Pop(&q.waiting).(*nodeImage).image)
	}
	return images
}

// nodeImageHeap is a heap of images, the one on most nodes first.
type nodeImageHeap []*nodeImage

func (h nodeImageHeap) Len() int { return len(h) }
func (h nodeImageHeap) Less(a, b int) bool {
	return h[a].nodes > h[b].nodes || h[a].nodes == h[b].nodes && h[a].key < h[b].key
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

// reset forgets what is to be asked for.
func (h *nodeImages) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.waiting)
}

// imageOnNodes stands for the workload of an image that nodes hold.
func imageOnNodes(reference string) workloadImages {
	return workloadImages{
		workload: corev1.ObjectReference{Kind: "Node", Name: reference}, controlled: true, pull: nodePull, images: []string{reference},
	}
}

// onlyOnNodes tells whether nodes hold an image and no workload names it.
func (u *usage) onlyOnNodes(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.images[key].onlyOnNodes()
}

func (entry *used) onlyOnNodes() bool {
	return entry != nil && len(entry.pulls) == 1 && entry.pulls[unique.Make(nodePull)] > 0
}

// countOnlyOnNodes counts the images that nodes hold and no workload names.
func (u *usage) countOnlyOnNodes() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, entry := range u.images {
		if entry.onlyOnNodes() {
			n++
		}
	}
	return n
}

// imagesOn returns the images that a node states by digest: of each the first such name, in
// full. The digest may be that of an index or of a manifest.
func imagesOn(node *corev1.Node) (references []string) {
	for i := range node.Status.Images {
		for _, name := range node.Status.Images[i].Names {
			if !strings.Contains(name, "@") {
				continue
			}
			full, err := imageref.Full(name)
			if err != nil {
				continue // "<none>@<none>"
			}
			if reference := full.String(); len(references) < maxImagesPerNode && !slices.Contains(references, reference) {
				references = append(references, reference)
			}
			break
		}
	}
	return references
}

package controller

import (
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
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
	// nodeImageRefusal is for how long a refusal is believed, at least: an image may be gone
	// from its registry and stay on nodes for ever.
	nodeImageRefusal = 6 * time.Hour
	// nodeImagePause is how long none is asked for after their registry had enough.
	nodeImagePause = time.Hour
	// nodeImageAttempts is how often an image is asked for while its registry does not answer.
	// After that the next one has its turn: it may be this image only that makes the
	// registry fail.
	nodeImageAttempts = 5
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

// setNodeImages notes which images a node holds, and asks for those that are new.
func (r *Resolver) setNodeImages(node string, references []string) {
	if !r.options.ImagesOnNodes {
		return
	}
	added, gone := r.nodeImages.set(node, references)
	for _, reference := range added {
		for _, image := range r.usage.set(imageOnNodes(reference)).added {
			if r.leading.Load() { // Start handles what existed before
				r.ask(image)
			}
		}
	}
	for _, reference := range gone {
		r.release(r.usage.unset(imageOnNodes(reference).workload)...)
	}
}

// imageOnNodes stands for the workload of an image that nodes hold.
func imageOnNodes(reference string) workloadImages {
	return workloadImages{
		workload: corev1.ObjectReference{Kind: "Node", Name: reference}, controlled: true, pull: nodePull, images: []string{reference},
	}
}

// enqueue adds an image to the queue of its registry. One that only nodes hold has the
// lowest priority, and it is handed over when its turn comes.
func (r *Resolver) enqueue(image image, after time.Duration, priority int) {
	switch {
	case !r.usage.onlyOnNodes(image.key):
		r.queues.add(image, after, priority)
	case after > 0:
		switch last := r.attempts.of(image); {
		case last.reason == v1alpha1.ReasonRateLimited || last.gaveUp():
			after = max(after, nodeImagePause)
		case last.reason != "" && !temporary(last.reason):
			after = max(after, nodeImageRefusal)
		}
		r.queues.add(image, after, spare)
	default:
		r.handOver(r.nodeImages.want(image))
	}
}

// worked makes room for the next image that only nodes hold, after one was worked on. One
// whose registry does not answer keeps its place for a while: there is no point in asking
// for more.
func (r *Resolver) worked(image image) {
	if last := r.attempts.of(image); r.usage.inUse(image.key) && temporary(last.reason) && !last.gaveUp() {
		return
	}
	r.handOver(r.nodeImages.done(image))
	// There may be more to do since it began, which was not noted while it had its turn.
	if r.usage.onlyOnNodes(image.key) && r.due(image).task != nothing {
		r.ask(image)
	}
}

// gaveUp reports whether a registry failed so often on an image that others have their turn.
// A registry that had enough says nothing about the image.
func (a *attempt) gaveUp() bool {
	return a.reason == v1alpha1.ReasonUnavailable && a.failures >= nodeImageAttempts
}

// hasRoom reports whether there is room for what will be known about a new image: one that
// only nodes hold displaces no other.
func (r *Resolver) hasRoom(image image) bool {
	namespaces := r.usage.namespaces(image.key)
	if r.usage.onlyOnNodes(image.key) {
		return r.quota.hasSpare(namespaces)
	}
	return r.quota.hasRoom(namespaces)
}

func (r *Resolver) handOver(images []image) {
	for _, image := range images {
		r.queues.add(image, 0, spare)
	}
}

// question returns how a question about an image is counted.
func (r *Resolver) question(image image, question string) string {
	if r.usage.onlyOnNodes(image.key) {
		return "held"
	}
	return question
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

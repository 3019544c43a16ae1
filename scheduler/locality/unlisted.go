package locality

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// unlistedSource is the name in the index of images that nodes have and do not list.
const unlistedSource = "unlisted"

// maxUnlisted bounds how many of them count for a node.
const maxUnlisted = 512

// unlisted remembers images that nodes have and do not list: a kubelet lists only its
// largest ones (nodeStatusMaxImages). An image that vanishes from a full list and is no
// larger than the smallest one there is not known to be gone, and the images of pods that
// run on the node are there whatever the list says.
//
// What is remembered ends with UnlistedTimeout, and when the kubelet removes images. That
// shows in images that vanish although they are larger than others in the list. It removes
// the least recently used ones first (realImageGCManager in k8s.io/kubernetes/pkg/kubelet/
// images), so what was used later than those is still there.
type unlisted struct {
	mu    sync.Mutex
	nodes map[string]*rest
}

// rest is what is remembered about a node.
type rest struct {
	images []kept
	// used is when pods last used an image, listed or not.
	used map[imageref.Canonical]time.Time
}

// kept is an image of a node that it does not list.
type kept struct {
	names []imageref.Canonical
	image index.Image
	// seen is when it was last known to be there.
	seen time.Time
}

// lastUsed returns when pods last used an image; the zero time if that is not known.
func (r *rest) lastUsed(names []imageref.Canonical) (last time.Time) {
	for _, n := range names {
		if at := r.used[n]; at.After(last) {
			last = at
		}
	}
	return last
}

// use notes that pods use an image.
func (r *rest) use(names []imageref.Canonical, now time.Time) {
	if r.used == nil {
		r.used = map[imageref.Canonical]time.Time{}
	}
	for _, n := range names {
		r.used[n] = now
	}
	// What was not used for long does not matter.
	if len(r.used) > 8*maxUnlisted {
		byAge := slices.SortedFunc(maps.Keys(r.used), func(a, b imageref.Canonical) int { return r.used[a].Compare(r.used[b]) })
		for _, n := range byAge[:len(byAge)/2] {
			delete(r.used, n)
		}
	}
}

func shareName(a, b []imageref.Canonical) bool {
	return slices.ContainsFunc(a, func(n imageref.Canonical) bool { return slices.Contains(b, n) })
}

// canonical returns the valid ones of an image's names.
func canonical(names ...string) []imageref.Canonical {
	var all []imageref.Canonical
	for _, name := range names {
		if n, err := imageref.Parse(name); err == nil && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

// imagesInUse returns the names of the images of a pod's containers that are on its node.
func imagesInUse(pod *v1.Pod) (images [][]string) {
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			if s := &statuses[i]; s.ImageID != "" && len(canonical(s.Image)) > 0 {
				images = append(images, []string{s.Image, s.ImageID})
			}
		}
	}
	return images
}

// listFull tells whether a node may have images that it does not list, and how large they
// are at most.
func (t *Tracker) listFull(node *v1.Node) (smallest int64, full bool) {
	limit := int(t.first.Args.NodeStatusMaxImages)
	if limit <= 0 || len(node.Status.Images) < limit || t.first.Args.UnlistedTimeout.Duration == 0 {
		return 0, false
	}
	smallest = node.Status.Images[0].SizeBytes
	for i := range node.Status.Images {
		smallest = min(smallest, node.Status.Images[i].SizeBytes)
	}
	return smallest, true
}

// reported updates what a node has and does not list, after it has reported. old is what
// it reported before, or nil.
func (t *Tracker) reported(old, node *v1.Node) {
	u, now := &t.unlisted, t.clock.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	smallest, full := t.listFull(node)
	if !full {
		if r := u.nodes[node.Name]; r != nil && len(r.images) > 0 {
			r.images = nil
			t.setUnlisted(node.Name, r)
		}
		return
	}
	listed := make(map[imageref.Canonical]bool, 2*len(node.Status.Images))
	for i := range node.Status.Images {
		for _, name := range canonical(node.Status.Images[i].Names...) {
			listed[name] = true
		}
	}
	isListed := func(names []imageref.Canonical) bool {
		return slices.ContainsFunc(names, func(n imageref.Canonical) bool { return listed[n] })
	}

	r := u.of(node.Name)
	images := slices.Clone(r.images)
	// collected: what was last used before has been removed.
	collected, removal := time.Time{}, false
	if pressed(node) {
		collected, removal = now, true
	}
	if old != nil {
		for _, image := range nodestatus.Images(old) {
			names := canonical(image.Names...)
			switch {
			case len(names) == 0 || isListed(names):
			case image.SizeBytes <= smallest:
				images = append(images, kept{names, image, now})
			default: // only its removal explains that it is not listed
				removal = true
				if at := r.lastUsed(names); at.After(collected) {
					collected = at
				}
			}
		}
	}
	var inUse [][]imageref.Canonical
	for _, pod := range t.podsOn(node.Name) {
		for _, names := range imagesInUse(pod) {
			image := canonical(names...)
			r.use(image, now)
			inUse = append(inUse, image)
			if !isListed(image) {
				images = t.keep(images, pod, names, now)
			}
		}
	}
	since := t.unlistedSince()
	r.images = slices.DeleteFunc(images, func(k kept) bool {
		switch {
		case isListed(k.names):
			return true
		case slices.ContainsFunc(inUse, func(names []imageref.Canonical) bool { return shareName(names, k.names) }):
			return false
		}
		return k.seen.Before(since) || removal && !r.lastUsed(k.names).After(collected)
	})
	t.setUnlisted(node.Name, r)
}

// unlistedSince is when an image must have been seen to count.
func (t *Tracker) unlistedSince() time.Time {
	return t.clock.Now().Add(-t.first.Args.UnlistedTimeout.Duration)
}

// forgetUnlisted drops what has not been seen on a node for too long.
func (t *Tracker) forgetUnlisted(node string) {
	u, since := &t.unlisted, t.unlistedSince()
	u.mu.Lock()
	defer u.mu.Unlock()
	old := func(k kept) bool { return k.seen.Before(since) }
	if r := u.nodes[node]; r != nil && slices.ContainsFunc(r.images, old) {
		for _, pod := range t.podsOn(node) {
			for _, names := range imagesInUse(pod) {
				seen(r.images, canonical(names...), t.clock.Now())
			}
		}
		r.images = slices.DeleteFunc(r.images, old)
		t.setUnlisted(node, r)
	}
}

// of returns what is remembered about a node.
func (u *unlisted) of(node string) *rest {
	r := u.nodes[node]
	if r == nil {
		r = &rest{}
		u.nodes[node] = r
	}
	return r
}

// inUse notes that a pod that runs on a node uses its images, or did until now.
func (t *Tracker) inUse(pod *v1.Pod) {
	node, now := t.node(pod.Spec.NodeName), t.clock.Now()
	if node == nil {
		return
	}
	u := &t.unlisted
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.of(node.Name)
	_, full := t.listFull(node)
	for _, names := range imagesInUse(pod) {
		image := canonical(names...)
		r.use(image, now)
		if full && !slices.ContainsFunc(node.Status.Images, func(i v1.ContainerImage) bool { return shareName(canonical(i.Names...), image) }) {
			r.images = t.keep(r.images, pod, names, now)
		}
	}
	if full {
		t.setUnlisted(node.Name, r)
	}
}

// pullFailed notes that the kubelet could not pull an image of a pod: it is not there.
func (t *Tracker) pullFailed(pod *v1.Pod) {
	u := &t.unlisted
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.nodes[pod.Spec.NodeName]
	if r == nil || len(r.images) == 0 {
		return
	}
	before := len(r.images)
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if names := t.profileOf(pod).Names(s.Image); failed(*s) {
			r.images = slices.DeleteFunc(r.images, func(k kept) bool { return shareName(k.names, names) })
		}
	}
	if len(r.images) != before {
		t.setUnlisted(pod.Spec.NodeName, r)
	}
}

// seen notes that an image is there, and reports whether it is one of these.
func seen(images []kept, names []imageref.Canonical, now time.Time) bool {
	i := slices.IndexFunc(images, func(k kept) bool { return shareName(k.names, names) })
	if i >= 0 {
		images[i].seen = now
	}
	return i >= 0
}

// keep adds an image of a pod, with what is known about it; or notes that it is used.
func (t *Tracker) keep(images []kept, pod *v1.Pod, names []string, now time.Time) []kept {
	image := canonical(names...)
	if seen(images, image, now) {
		return images
	}
	known, ok := t.index.Image(index.Wanted{Names: image, Manifests: t.manifests(image)}, pod.Spec.NodeName)
	if !ok {
		return images
	}
	known.Names = names
	return append(images, kept{image, known, now})
}

// setUnlisted writes what a node has and does not list into the index.
func (t *Tracker) setUnlisted(node string, r *rest) {
	if len(r.images) > maxUnlisted {
		slices.SortFunc(r.images, func(a, b kept) int { return b.seen.Compare(a.seen) })
		r.images = r.images[:maxUnlisted]
	}
	reported := make([]index.Image, len(r.images))
	for i := range r.images {
		reported[i] = r.images[i].image
	}
	t.index.SetImages(unlistedSource, node, reported)
}

// pressed tells whether the kubelet is short of disk, so that it removes images.
func pressed(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeDiskPressure && c.Status == v1.ConditionTrue
	})
}

package locality

import (
	"iter"
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

// maxUnlisted bounds how many of them count for a node, maxUsed how many names are
// remembered with the time of their last use.
const (
	maxUnlisted = 512
	maxUsed     = 1024
)

// unlisted remembers images that nodes have and do not list: a kubelet lists only its
// largest ones (nodeStatusMaxImages). An image that vanishes from a full list and is no
// larger than the smallest one there is not known to be gone, and the images of pods that
// run on the node are there whatever is listed.
//
// What is remembered ends with UnlistedTimeout, and when the kubelet removes images. That
// shows in images that vanish although they are larger than others in the list. It removes
// the least recently used ones first (realImageGCManager in k8s.io/kubernetes/pkg/kubelet/
// images), so what was used later than those is still there.
type unlisted struct {
	mu sync.Mutex
	// nodes, and what is in them, is guarded by mu.
	nodes map[string]*unlistedImages
}

// unlistedImages are those of a node.
type unlistedImages struct {
	images []unlistedImage
	// used is when pods last used an image, listed or not.
	used map[imageref.Canonical]time.Time
}

// unlistedImage is an image of a node that it does not list.
type unlistedImage struct {
	names []imageref.Canonical
	image index.Image
	// seen is when it was last known to be there.
	seen time.Time
}

// lastUsed returns when pods last used an image; the zero time if that is not known.
func (r *unlistedImages) lastUsed(names []imageref.Canonical) (last time.Time) {
	for _, n := range names {
		if at := r.used[n]; at.After(last) {
			last = at
		}
	}
	return last
}

// use notes that pods use an image.
func (r *unlistedImages) use(names []imageref.Canonical, now, since time.Time) {
	if r.used == nil {
		r.used = map[imageref.Canonical]time.Time{}
	}
	for _, n := range names {
		r.used[n] = now
	}
	if len(r.used) > maxUsed {
		maps.DeleteFunc(r.used, func(_ imageref.Canonical, at time.Time) bool { return at.Before(since) })
	}
	if len(r.used) > maxUsed { // of those left, what was used longest ago matters least
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

// statuses yields those of all containers of a pod.
func statuses(pod *v1.Pod) iter.Seq[*v1.ContainerStatus] {
	return func(yield func(*v1.ContainerStatus) bool) {
		for _, some := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range some {
				if !yield(&some[i]) {
					return
				}
			}
		}
	}
}

// imagesInUse returns the images of a pod's containers and volumes that are on its node, each by
// its digest. The name in a status is any name that the image had; a tag may have moved to
// another image since. It counts if there is no digest.
func imagesInUse(pod *v1.Pod) (images [][]imageref.Canonical) {
	add := func(digest, name string) {
		names := canonical(digest)
		if len(names) == 0 {
			names = canonical(name)
		}
		if len(names) > 0 {
			images = append(images, names)
		}
	}
	volumes := map[string]string{} // digests of the images of volumes, if kubelets report them
	created := false
	for s := range statuses(pod) {
		if s.ImageID == "" {
			continue
		}
		created = true
		add(s.ImageID, s.Image)
		for i := range s.VolumeMounts {
			if image := imageOfVolume(&s.VolumeMounts[i]); image != "" {
				volumes[s.VolumeMounts[i].Name] = image
			}
		}
	}
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.Image != nil && created {
			add(volumes[volume.Name], volume.Image.Reference)
		}
	}
	return images
}

// listFull reports whether a node may have images that it does not list, and how large they
// are at most.
func (t *Tracker) listFull(node *v1.Node) (smallest int64, full bool) {
	limit := int(t.first.Args.NodeStatusMaxImages)
	if t.nodeReports.hasFresh(node) || limit <= 0 || len(node.Status.Images) < limit || t.first.Args.UnlistedTimeout.Duration == 0 {
		return 0, false
	}
	smallest = node.Status.Images[0].SizeBytes
	for i := range node.Status.Images {
		smallest = min(smallest, node.Status.Images[i].SizeBytes)
	}
	return smallest, true
}

// updateUnlisted updates what a node has and does not list, after it has reported. old is what
// it reported before, or nil.
func (t *Tracker) updateUnlisted(old, node *v1.Node) {
	u, now, since := &t.unlisted, t.clock.Now(), t.unlistedSince()
	u.mu.Lock()
	defer u.mu.Unlock()
	smallest, full := t.listFull(node)
	if !full {
		if r := u.nodes[node.Name]; r != nil {
			delete(u.nodes, node.Name)
			t.setUnlistedLocked(node.Name, &unlistedImages{})
		}
		return
	}
	r := u.ofLocked(node.Name)
	images := slices.Clone(r.images)
	// collected: what was last used before has been removed.
	collected, removal := time.Time{}, false
	if pressed(node) {
		collected, removal = now, true
	}
	for _, image := range t.vanished(old, node) {
		names := canonical(image.Names...)
		if image.SizeBytes <= smallest {
			image.Layers = slices.Clone(image.Layers) // a part of those of the whole report
			images = append(images, unlistedImage{names, image, now})
			continue
		}
		removal = true // nothing else explains that it is not listed
		if at := r.lastUsed(names); at.After(collected) {
			collected = at
		}
	}
	var used [][]imageref.Canonical
	for _, pod := range t.podsOn(node.Name) {
		for _, names := range imagesInUse(pod) {
			r.use(names, now, since)
			used = append(used, names)
			if !t.lists(node.Name, names) {
				images, _ = t.addUsedLocked(images, node.Name, names, now)
			}
		}
	}
	r.images = slices.DeleteFunc(images, func(image unlistedImage) bool {
		switch {
		case t.lists(node.Name, image.names):
			return true
		case slices.ContainsFunc(used, func(names []imageref.Canonical) bool { return shareName(names, image.names) }):
			return false
		}
		return image.seen.Before(since) || removal && !r.lastUsed(image.names).After(collected)
	})
	t.setUnlistedLocked(node.Name, r)
}

// vanished returns the images that a node listed before and does not list now.
func (t *Tracker) vanished(old, node *v1.Node) (images []index.Image) {
	if old == nil {
		return nil
	}
	listed := make(map[string]bool, 2*len(node.Status.Images))
	for i := range node.Status.Images {
		for _, name := range node.Status.Images[i].Names {
			listed[name] = true
		}
	}
	for _, image := range nodestatus.Images(old) {
		if !slices.ContainsFunc(image.Names, func(name string) bool { return listed[name] }) && len(canonical(image.Names...)) > 0 {
			images = append(images, image)
		}
	}
	return images
}

// lists reports whether a node lists an image under one of the names.
func (t *Tracker) lists(node string, names []imageref.Canonical) bool {
	return t.index.Lists(nodeStatusSource, node, names) || t.index.Lists(manifestSource, node, names)
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
	old := func(image unlistedImage) bool { return image.seen.Before(since) }
	if r := u.nodes[node]; r != nil && slices.ContainsFunc(r.images, old) {
		for _, pod := range t.podsOn(node) {
			for _, names := range imagesInUse(pod) {
				refreshLocked(r.images, names, t.clock.Now())
			}
		}
		r.images = slices.DeleteFunc(r.images, old)
		t.setUnlistedLocked(node, r)
	}
}

// ofLocked returns what is remembered about a node.
func (u *unlisted) ofLocked(node string) *unlistedImages {
	r := u.nodes[node]
	if r == nil {
		r = &unlistedImages{}
		u.nodes[node] = r
	}
	return r
}

// inUse notes that a pod that runs on a node uses its images, or did until now.
func (t *Tracker) inUse(pod *v1.Pod) {
	u, now := &t.unlisted, t.clock.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	node := t.node(pod.Spec.NodeName)
	if node == nil {
		return
	}
	if _, full := t.listFull(node); !full {
		return
	}
	r, changed := u.ofLocked(node.Name), false
	for _, names := range imagesInUse(pod) {
		r.use(names, now, t.unlistedSince())
		if !t.lists(node.Name, names) {
			var added bool
			r.images, added = t.addUsedLocked(r.images, node.Name, names, now)
			changed = changed || added
		}
	}
	if changed {
		t.setUnlistedLocked(node.Name, r)
	}
}

// absent notes images of a pod that the kubelet does not find and that the pod must not pull
// (ErrImageNeverPull). Other failures prove nothing: for want of a credential, or of a
// registry to ask, the kubelet also refuses images that are there.
func (t *Tracker) absent(pod *v1.Pod) {
	u := &t.unlisted
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.nodes[pod.Spec.NodeName]
	if r == nil || len(r.images) == 0 {
		return
	}
	before := len(r.images)
	for s := range statuses(pod) {
		if w := s.State.Waiting; w == nil || w.Reason != "ErrImageNeverPull" {
			continue
		}
		names := t.profileOf(pod).Names(s.Image)
		r.images = slices.DeleteFunc(r.images, func(image unlistedImage) bool { return shareName(image.names, names) })
	}
	if len(r.images) != before {
		t.setUnlistedLocked(pod.Spec.NodeName, r)
	}
}

// refreshLocked notes that an image is there, and reports whether it is one of these.
func refreshLocked(images []unlistedImage, names []imageref.Canonical, now time.Time) bool {
	i := slices.IndexFunc(images, func(image unlistedImage) bool { return shareName(image.names, names) })
	if i >= 0 {
		images[i].seen = now
	}
	return i >= 0
}

// addUsedLocked adds an image that pods use, with what is known about it, or notes that it is there.
func (t *Tracker) addUsedLocked(images []unlistedImage, node string, names []imageref.Canonical, now time.Time) (_ []unlistedImage, added bool) {
	if refreshLocked(images, names, now) {
		return images, false
	}
	image, ok := t.index.Image(index.Wanted{Names: names, Manifests: t.manifests(names)}, node)
	if !ok {
		return images, false
	}
	image.Canonical = names
	return append(images, unlistedImage{names, image, now}), true
}

// rewriteUnlisted writes what a node has and does not list again, after manifests changed.
func (t *Tracker) rewriteUnlisted(node string) {
	u := &t.unlisted
	u.mu.Lock()
	defer u.mu.Unlock()
	if r := u.nodes[node]; r != nil && len(r.images) > 0 {
		t.setUnlistedLocked(node, r)
	}
}

// setUnlistedLocked writes what a node has and does not list into the index.
func (t *Tracker) setUnlistedLocked(node string, r *unlistedImages) {
	if len(r.images) > maxUnlisted {
		slices.SortFunc(r.images, func(a, b unlistedImage) int { return b.seen.Compare(a.seen) })
		r.images = r.images[:maxUnlisted]
	}
	in := nodeTraits{chains: t.index.Chains(node)}
	if n := t.node(node); n != nil {
		in.platform = nodestatus.Platform(n)
	}
	reported := make([]index.Image, len(r.images))
	for i := range r.images {
		reported[i], _ = t.resolve(r.images[i].image, in)
	}
	t.index.SetImages(unlistedSource, node, reported)
}

// pressed reports whether the kubelet is short of disk, so that it removes images.
func pressed(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeDiskPressure && c.Status == v1.ConditionTrue
	})
}

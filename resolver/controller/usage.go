package controller

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// pull says which pull secrets a workload's images are pulled with.
type pull struct {
	namespace, serviceAccount string
	// secrets are the names of imagePullSecrets, separated by commas.
	secrets string
}

// workloadImages is what a workload needs.
type workloadImages struct {
	workload corev1.ObjectReference
	// controlled marks pods that another object made: that object gets the events.
	controlled bool
	// settled marks objects all of whose pods are made from the template they have now. The
	// pods name what they run themselves: an image that only the template names is one that
	// admission replaced.
	settled bool
	pull    pull
	// images as written in the workload.
	images []string
}

// image is what a workload may mean by an image name: full references, in the
// order in which a container runtime tries them. It is the unit of work.
type image struct {
	// key identifies the image: the references, separated by spaces.
	key        string
	references []string
}

func newImage(references []string) image {
	return image{key: strings.Join(references, " "), references: references}
}

// imageOf returns the image that a key identifies.
func imageOf(key string) image { return image{key: key, references: strings.Split(key, " ")} }

// registry is the host of the first reference.
func (i image) registry() string {
	host, _, _ := strings.Cut(i.references[0], "/")
	return host
}

// usage knows which images are in use, and by what.
type usage struct {
	// expand turns a name into the references it may mean.
	expand func(image string) ([]string, error)
	clock  clock.PassiveClock
	// keep is how long the time since a reference became idle matters. 0 means
	// that only prune forgets it.
	keep time.Duration
	// begun is when usage started to be recorded.
	begun  time.Time
	pruned time.Time

	mu         sync.Mutex
	names      *names
	byWorkload map[corev1.ObjectReference]*usedBy
	// over has the workloads with names for which there is no room, by namespace.
	over map[string]map[*usedBy]struct{}
	// images has those in use, and those that only settled objects name.
	images map[string]*used
	// references has, for each reference, the keys of the images in use that may
	// mean it. idle has the references that no image means any longer, and since
	// when.
	references map[string][]string
	idle       map[string]idling
}

// idling is a reference that no image means any longer.
type idling struct {
	since time.Time
	// namespace that used it last; empty if that was before this process.
	namespace string
}

type usedBy struct {
	workloadImages
	// keys of the images for which there is room.
	keys []string
	// waiting has the indexes in images of the others.
	waiting []int32
}

type used struct {
	image
	// since is when it came into use, as far as this process knows.
	since time.Time
	by    map[*usedBy]struct{}
	// pulls counts the workloads with the same pull secrets, without those that are settled:
	// none if the image is not in use. A small map has room for eight
	// keys, and most images have one: handles make that half a KiB less for each image.
	pulls map[unique.Handle[pull]]int
}

// inUse reports whether more than settled objects name the image.
func (u *used) inUse() bool { return u != nil && len(u.pulls) > 0 }

func newUsage(expand func(string) ([]string, error), clock clock.PassiveClock, keep time.Duration, images limits) *usage {
	return &usage{
		expand: expand, clock: clock, keep: keep, begun: clock.Now(), names: newNames(images),
		byWorkload: map[corev1.ObjectReference]*usedBy{}, over: map[string]map[*usedBy]struct{}{}, images: map[string]*used{},
		references: map[string][]string{}, idle: map[string]idling{},
	}
}

// invalidName is an image name that no container runtime accepts.
type invalidName struct {
	name string
	err  error
}

// change is what another workload, or another state of one, changed.
type change struct {
	// added are images that nothing used before, or not with these pull secrets.
	added []image
	// shared are the other images that are new to the workload: something else
	// uses them already, with the same pull secrets.
	shared []image
	// invalid are the invalid image names that are new to the workload.
	invalid []invalidName
	// over is set if the workload has names for which there is no room, and had none before. first is
	// one of them.
	over  bool
	first image
	// unused are the keys of images that nothing uses any longer.
	unused []string
}

// set stores what a workload needs, and replaces what it needed before.
func (u *usage) set(c workloadImages) change {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.byWorkload[c.workload]
	if old != nil && old.pull == c.pull && old.settled == c.settled && slices.Equal(old.images, c.images) {
		return change{}
	}
	var changed change
	entry, retained := &usedBy{workloadImages: c}, map[string]bool{}
	if old != nil {
		for _, key := range old.keys {
			retained[key] = true
		}
	}
	seen := make(map[string]bool, len(c.images))
	var images, others []image
	var indexes []int32 // of the others
	for at, name := range c.images {
		references, err := u.expand(name)
		if err != nil {
			if old == nil || !slices.Contains(old.images, name) {
				changed.invalid = append(changed.invalid, invalidName{name, err})
			}
			continue
		}
		image := newImage(references)
		if seen[image.key] {
			continue
		}
		seen[image.key] = true
		// What it had it keeps, and what it no longer has makes room.
		if retained[image.key] {
			images = append(images, image)
		} else {
			others, indexes = append(others, image), append(indexes, int32(at)) //nolint:gosec // of the images of one object
		}
	}
	for key := range retained {
		if !seen[key] {
			u.names.remove(c.pull.namespace, key)
		}
	}
	for i, image := range others {
		// After one without room, those that others of the namespace name as well.
		if full := entry.waiting != nil; (!full || u.names.has(c.pull.namespace, image.key)) && u.names.add(c.pull.namespace, image.key) {
			images = append(images, image)
			continue
		}
		if entry.waiting == nil {
			changed.over, changed.first = true, image
		}
		entry.waiting = append(entry.waiting, indexes[i])
	}
	for _, image := range images {
		entry.keys = append(entry.keys, image.key)
		if u.add(image, entry) {
			changed.added = append(changed.added, image)
		} else if u.images[image.key].inUse() && !retained[image.key] {
			changed.shared = append(changed.shared, image)
		}
	}
	u.byWorkload[c.workload] = entry
	wasOver := u.dropOver(old)
	if changed.over {
		if u.over[c.pull.namespace] == nil {
			u.over[c.pull.namespace] = map[*usedBy]struct{}{}
		}
		u.over[c.pull.namespace][entry] = struct{}{}
		changed.over = !wasOver
	}
	// Last, so that an image that stays in use is never idle.
	changed.unused = u.release(old)
	return changed
}

// dropOver forgets that there is no room for names of a workload, and reports whether there was none.
func (u *usage) dropOver(entry *usedBy) bool {
	if entry == nil {
		return false
	}
	workloads := u.over[entry.pull.namespace]
	_, found := workloads[entry]
	if delete(workloads, entry); len(workloads) == 0 {
		delete(u.over, entry.pull.namespace)
	}
	return found
}

// admitted is an image for which there is room now.
type admitted struct {
	image  image
	images workloadImages
}

// admit returns images for which there had been no room and now is, those that are new in use.
func (u *usage) admit() (added []admitted) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for namespace, workloads := range u.over {
		for entry := range workloads {
			if !u.names.hasRoom(namespace) {
				break
			}
			for len(entry.waiting) > 0 {
				references, err := u.expand(entry.images[entry.waiting[0]])
				image := newImage(references)
				if err == nil && !u.names.add(namespace, image.key) {
					break
				}
				if entry.waiting = entry.waiting[1:]; err != nil {
					continue
				}
				entry.keys = append(entry.keys, image.key)
				if u.add(image, entry) {
					added = append(added, admitted{image, entry.workloadImages})
				}
			}
			if len(entry.waiting) == 0 {
				u.dropOver(entry)
			}
		}
	}
	return added
}

// add notes that a workload needs an image, and reports whether that is new:
// nothing used the image before, or not with these pull secrets.
func (u *usage) add(image image, by *usedBy) bool {
	entry := u.images[image.key]
	if entry == nil {
		entry = &used{image: image, by: map[*usedBy]struct{}{}, pulls: map[unique.Handle[pull]]int{}}
		u.images[image.key] = entry
	}
	entry.by[by] = struct{}{}
	if by.settled {
		return false
	}
	if !entry.inUse() {
		entry.since = u.clock.Now()
		for _, reference := range image.references {
			u.references[reference] = append(u.references[reference], image.key)
			delete(u.idle, reference)
		}
	}
	pull := unique.Make(by.pull)
	entry.pulls[pull]++
	return entry.pulls[pull] == 1
}

// unset forgets a workload and returns the keys of images that nothing uses any
// longer.
func (u *usage) unset(workload corev1.ObjectReference) (unused []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.byWorkload[workload]
	if old == nil {
		return nil
	}
	delete(u.byWorkload, workload)
	u.dropOver(old)
	for _, key := range old.keys {
		u.names.remove(old.pull.namespace, key)
	}
	return u.release(old)
}

// release undoes add for what a workload no longer needs, and returns the keys of
// images that nothing uses any longer.
func (u *usage) release(old *usedBy) (unused []string) {
	if old == nil {
		return nil
	}
	for _, key := range old.keys {
		entry := u.images[key]
		delete(entry.by, old)
		if len(entry.by) == 0 {
			delete(u.images, key)
		}
		if old.settled {
			continue
		}
		pull := unique.Make(old.pull)
		if entry.pulls[pull]--; entry.pulls[pull] == 0 {
			delete(entry.pulls, pull)
		}
		if entry.inUse() {
			continue
		}
		unused = append(unused, key)
		for _, reference := range entry.references {
			left := slices.DeleteFunc(u.references[reference], func(other string) bool { return other == key })
			if u.references[reference] = left; len(left) == 0 {
				delete(u.references, reference)
				u.idle[reference] = idling{u.clock.Now(), old.pull.namespace}
			}
		}
	}
	if u.keep > 0 && u.clock.Since(u.pruned) >= u.keep/10 {
		u.prune(u.keep)
		u.pruned = u.clock.Now()
	}
	return unused
}

// inUse reports whether a workload uses an image.
func (u *usage) inUse(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.images[key].inUse()
}

// all returns the images in use.
func (u *usage) all() []image {
	u.mu.Lock()
	defer u.mu.Unlock()
	images := make([]image, 0, len(u.images))
	for _, entry := range u.images {
		if entry.inUse() {
			images = append(images, entry.image)
		}
	}
	return images
}

// meaning returns the images in use that may mean one of the references.
func (u *usage) meaning(references []string) []image {
	u.mu.Lock()
	defer u.mu.Unlock()
	var images []image
	for _, reference := range references {
		for _, key := range u.references[reference] {
			images = append(images, u.images[key].image)
		}
	}
	return images
}

// pullsFrom returns which pull secrets may be used for an image, those whose turn it is: at
// most limit in a fixed order, from the given one on, and again from the first after the
// last. next is the one after those that are returned. The first ones of each namespace are
// before all second ones, so that none has to wait for the many of another.
func (u *usage) pullsFrom(key string, from pull, limit int) (pulls []pull, next pull) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.images[key]
	if entry == nil {
		return nil, pull{}
	}
	for p := range entry.pulls {
		if p.Value() != nodePull {
			pulls = append(pulls, p.Value())
		}
	}
	slices.SortFunc(pulls, comparePulls)
	if len(pulls) <= limit {
		return pulls, pull{}
	}
	// The place of each in its namespace, also of from if it is gone meanwhile.
	place, count := map[pull]int{}, map[string]int{}
	for _, p := range pulls {
		if p.namespace == from.namespace && comparePulls(p, from) < 0 {
			place[from] = count[p.namespace] + 1
		}
		place[p] = count[p.namespace]
		count[p.namespace]++
	}
	compare := func(a, b pull) int { return cmp.Or(cmp.Compare(place[a], place[b]), comparePulls(a, b)) }
	slices.SortFunc(pulls, compare)
	at, _ := slices.BinarySearchFunc(pulls, from, compare)
	turned := append(slices.Clone(pulls[at:]), pulls[:at]...)
	return turned[:limit], turned[limit]
}

// pulledWith reports whether a workload uses an image with these pull secrets.
func (u *usage) pulledWith(key string, p pull) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.images[key]
	return entry != nil && entry.pulls[unique.Make(p)] > 0
}

func comparePulls(a, b pull) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.serviceAccount, b.serviceAccount), cmp.Compare(a.secrets, b.secrets))
}

// maxNamespaces bounds the namespaces among which an image's turn is chosen.
const maxNamespaces = 8

// namespaces returns some of the namespaces that use an image, in no order. An image that
// only nodes hold counts for a namespace without a name.
func (u *usage) namespaces(key string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.namespacesOf(u.images[key])
}

func (u *usage) namespacesOf(entry *used) (found []string) {
	if entry == nil {
		return nil
	}
	for p := range entry.pulls {
		if p.Value() == nodePull && len(entry.pulls) > 1 {
			continue
		}
		if namespace := p.Value().namespace; !slices.Contains(found, namespace) {
			found = append(found, namespace)
		}
		if len(found) == maxNamespaces {
			break
		}
	}
	return found
}

// tenant is who a reference counts for, and how old its use is.
type tenant struct {
	// namespaces are some of those that use it, or the one that used it last; none if
	// that is not known.
	namespaces []string
	inUse      bool
	// since is when it came into use, or out of it.
	since time.Time
}

// tenantOf returns who a reference counts for.
func (u *usage) tenantOf(reference string) tenant {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := tenant{}
	for _, key := range u.references[reference] {
		entry := u.images[key]
		if !t.inUse || entry.since.Before(t.since) {
			t.since = entry.since
		}
		t.inUse = true
		t.namespaces = append(t.namespaces, u.namespacesOf(entry)...)
	}
	if t.inUse {
		return t
	}
	if old, ok := u.idle[reference]; ok {
		t.since = old.since
		if old.namespace != "" {
			t.namespaces = []string{old.namespace}
		}
		return t
	}
	t.since = u.begun
	return t
}

// remember notes since when a reference is unused, as an earlier process knew it or, with
// the zero time, from now on. namespaces are those that used it; none if that is not known.
// It does nothing for a reference in use, or known to be unused.
func (u *usage) remember(reference string, since time.Time, namespaces []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, known := u.idle[reference]; known || len(u.references[reference]) > 0 {
		return
	}
	if now := u.clock.Now(); since.IsZero() || since.After(now) {
		since = now
	}
	entry := idling{since: since}
	if len(namespaces) > 0 {
		entry.namespace = namespaces[0]
	}
	u.idle[reference] = entry
}

// forgetIdle drops what is known of references that are unused and have no object.
func (u *usage) forgetIdle(references ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, reference := range references {
		delete(u.idle, reference)
	}
}

// workloads returns at most limit workloads that use an image. Pods that another
// object made are returned only if nothing else uses it.
func (u *usage) workloads(key string, limit int) []corev1.ObjectReference {
	return u.workloadsIn(key, "", limit)
}

// workloadsIn is workloads for one namespace; for all if it is empty.
func (u *usage) workloadsIn(key, namespace string, limit int) []corev1.ObjectReference {
	u.mu.Lock()
	defer u.mu.Unlock()
	var found, controlled []corev1.ObjectReference
	if entry := u.images[key]; entry != nil {
		for by := range entry.by {
			if by.pull == nodePull || namespace != "" && by.workload.Namespace != namespace {
				continue
			}
			if !by.controlled {
				found = append(found, by.workload)
			} else if len(controlled) < limit {
				controlled = append(controlled, by.workload)
			}
			if len(found) == limit {
				break
			}
		}
	}
	if len(found) == 0 {
		return controlled
	}
	return found
}

// unusedFor reports whether nothing has used a reference for at least that
// long. A reference that was never in use counts from the start of the process.
func (u *usage) unusedFor(reference string, atLeast time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.references[reference]) > 0 {
		return false
	}
	old, ok := u.idle[reference]
	if !ok {
		old.since = u.begun
	}
	return u.clock.Since(old.since) >= atLeast
}

// prune forgets the idle time of references that have been idle for at least
// that long. unusedFor returns the same without it.
func (u *usage) prune(atLeast time.Duration) {
	maps.DeleteFunc(u.idle, func(_ string, old idling) bool { return u.clock.Since(old.since) >= atLeast })
}

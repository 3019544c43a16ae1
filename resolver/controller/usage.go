package controller

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// pull says which pull secrets a workload's images are pulled with.
type pull struct {
	namespace, serviceAccount string
	// secrets are the names of imagePullSecrets, separated by commas.
	secrets string
}

// claim is what a workload needs.
type claim struct {
	workload corev1.ObjectReference
	// controlled marks pods that another object made: that object gets the events.
	controlled bool
	pull       pull
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

	mu     sync.Mutex
	claims map[corev1.ObjectReference]*usedBy
	images map[string]*used
	// references has, for each reference, the keys of the images in use that may
	// mean it. idle has the references that no image means any longer, and since
	// when.
	references map[string]map[string]bool
	idle       map[string]time.Time
}

type usedBy struct {
	claim
	keys []string
}

type used struct {
	image
	by    map[*usedBy]struct{}
	pulls map[pull]int
}

func newUsage(expand func(string) ([]string, error), clock clock.PassiveClock, keep time.Duration) *usage {
	return &usage{
		expand: expand, clock: clock, keep: keep, begun: clock.Now(),
		claims: map[corev1.ObjectReference]*usedBy{}, images: map[string]*used{},
		references: map[string]map[string]bool{}, idle: map[string]time.Time{},
	}
}

// invalidName is an image name that no container runtime accepts.
type invalidName struct {
	name string
	err  error
}

// change is what a claim changed.
type change struct {
	// added are images that nothing used before, or not with these pull secrets.
	added []image
	// shared are the other images that are new to the workload: something else
	// uses them already, with the same pull secrets.
	shared []image
	// invalid are the invalid image names that are new to the workload.
	invalid []invalidName
	// unused are the keys of images that nothing uses any longer.
	unused []string
}

// set stores what a workload needs, and replaces what it needed before.
func (u *usage) set(c claim) change {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.claims[c.workload]
	if old != nil && old.pull == c.pull && slices.Equal(old.images, c.images) {
		return change{}
	}
	var changed change
	entry := &usedBy{claim: c}
	for _, name := range c.images {
		references, err := u.expand(name)
		if err != nil {
			if old == nil || !slices.Contains(old.images, name) {
				changed.invalid = append(changed.invalid, invalidName{name, err})
			}
			continue
		}
		image := newImage(references)
		if slices.Contains(entry.keys, image.key) {
			continue
		}
		entry.keys = append(entry.keys, image.key)
		if u.add(image, entry) {
			changed.added = append(changed.added, image)
		} else if old == nil || !slices.Contains(old.keys, image.key) {
			changed.shared = append(changed.shared, image)
		}
	}
	u.claims[c.workload] = entry
	// Last, so that an image that stays in use is never idle.
	changed.unused = u.release(old)
	return changed
}

// add notes that a claim needs an image, and reports whether that is new:
// nothing used the image before, or not with these pull secrets.
func (u *usage) add(image image, by *usedBy) bool {
	entry := u.images[image.key]
	if entry == nil {
		entry = &used{image: image, by: map[*usedBy]struct{}{}, pulls: map[pull]int{}}
		u.images[image.key] = entry
		for _, reference := range image.references {
			if u.references[reference] == nil {
				u.references[reference] = map[string]bool{}
			}
			u.references[reference][image.key] = true
			delete(u.idle, reference)
		}
	}
	added := entry.pulls[by.pull] == 0
	entry.pulls[by.pull]++
	entry.by[by] = struct{}{}
	return added
}

// unset forgets a workload and returns the keys of images that nothing uses any
// longer.
func (u *usage) unset(workload corev1.ObjectReference) (unused []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.claims[workload]
	delete(u.claims, workload)
	return u.release(old)
}

// release undoes add for a claim that no longer holds, and returns the keys of
// images that nothing uses any longer.
func (u *usage) release(old *usedBy) (unused []string) {
	if old == nil {
		return nil
	}
	for _, key := range old.keys {
		entry := u.images[key]
		if entry.pulls[old.pull]--; entry.pulls[old.pull] == 0 {
			delete(entry.pulls, old.pull)
		}
		delete(entry.by, old)
		if len(entry.pulls) > 0 {
			continue
		}
		delete(u.images, key)
		unused = append(unused, key)
		for _, reference := range entry.references {
			delete(u.references[reference], key)
			if len(u.references[reference]) == 0 {
				delete(u.references, reference)
				u.idle[reference] = u.clock.Now()
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
	return u.images[key] != nil
}

// all returns the images in use.
func (u *usage) all() []image {
	u.mu.Lock()
	defer u.mu.Unlock()
	images := make([]image, 0, len(u.images))
	for _, entry := range u.images {
		images = append(images, entry.image)
	}
	return images
}

// meaning returns the images in use that may mean one of the references.
func (u *usage) meaning(references []string) []image {
	u.mu.Lock()
	defer u.mu.Unlock()
	var images []image
	for _, reference := range references {
		for key := range u.references[reference] {
			images = append(images, u.images[key].image)
		}
	}
	return images
}

// pulls returns which pull secrets may be used for an image: at most limit, always
// the same ones.
func (u *usage) pulls(key string, limit int) []pull {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.images[key]
	if entry == nil {
		return nil
	}
	pulls := slices.SortedFunc(maps.Keys(entry.pulls), func(a, b pull) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.serviceAccount, b.serviceAccount), cmp.Compare(a.secrets, b.secrets))
	})
	return pulls[:min(len(pulls), limit)]
}

// workloads returns at most limit workloads that use an image. Pods that another
// object made are returned only if nothing else uses it.
func (u *usage) workloads(key string, limit int) []corev1.ObjectReference {
	u.mu.Lock()
	defer u.mu.Unlock()
	var found, controlled []corev1.ObjectReference
	if entry := u.images[key]; entry != nil {
		for by := range entry.by {
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
	since, ok := u.idle[reference]
	if !ok {
		since = u.begun
	}
	return u.clock.Since(since) >= atLeast
}

// prune forgets the idle time of references that have been idle for at least
// that long. unusedFor returns the same without it.
func (u *usage) prune(atLeast time.Duration) {
	maps.DeleteFunc(u.idle, func(_ string, since time.Time) bool { return u.clock.Since(since) >= atLeast })
}

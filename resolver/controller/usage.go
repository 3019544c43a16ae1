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

// pull is whose pull secrets a workload's images are pulled with.
type pull struct {
	namespace, serviceAccount string
	// secrets are the names of imagePullSecrets, separated by commas.
	secrets string
}

// claim is what a workload needs.
type claim struct {
	workload corev1.ObjectReference
	// controlled marks pods that another object made: events go there.
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

// imageOf is the inverse of key.
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
	// begun is since when it is known what is in use.
	begun time.Time
	// keep is how long idle references are of interest; 0: prune decides.
	keep   time.Duration
	pruned time.Time

	mu     sync.Mutex
	claims map[corev1.ObjectReference]*usedBy
	images map[string]*used
	// references has the keys of the images in use that may mean a reference; idle
	// has those that none does any more, and since when.
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

func newUsage(expand func(string) ([]string, error), clock clock.PassiveClock) *usage {
	return &usage{
		expand: expand, clock: clock, begun: clock.Now(),
		claims: map[corev1.ObjectReference]*usedBy{}, images: map[string]*used{},
		references: map[string]map[string]bool{}, idle: map[string]time.Time{},
	}
}

// invalid is an image name that no runtime takes.
type invalid struct {
	image string
	err   error
}

// change is what is new with a claim.
type change struct {
	// fresh are images that nothing used before, or not with these pull secrets.
	fresh []image
	// joined are other images that the workload did not use before.
	joined []image
	// bad are names that are none.
	bad []invalid
	// gone are the keys of images that nothing uses any more.
	gone []string
}

// set notes what a workload needs, in place of what it needed before.
func (u *usage) set(c claim) (news change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.claims[c.workload]
	if old != nil && old.pull == c.pull && slices.Equal(old.images, c.images) {
		return change{}
	}
	entry := &usedBy{claim: c}
	for _, name := range c.images {
		references, err := u.expand(name)
		if err != nil {
			if old == nil || !slices.Contains(old.images, name) {
				news.bad = append(news.bad, invalid{name, err})
			}
			continue
		}
		image := newImage(references)
		if slices.Contains(entry.keys, image.key) {
			continue
		}
		entry.keys = append(entry.keys, image.key)
		if u.add(image, entry) {
			news.fresh = append(news.fresh, image)
		} else if old == nil || !slices.Contains(old.keys, image.key) {
			news.joined = append(news.joined, image)
		}
	}
	u.claims[c.workload] = entry
	// Afterwards, so that what stays in use is never idle.
	news.gone = u.release(old)
	return news
}

func (u *usage) add(image image, by *usedBy) (fresh bool) {
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
	fresh = entry.pulls[by.pull] == 0
	entry.pulls[by.pull]++
	entry.by[by] = struct{}{}
	return fresh
}

// unset forgets a workload and returns the keys of images that nothing uses any
// more.
func (u *usage) unset(workload corev1.ObjectReference) (gone []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.claims[workload]
	delete(u.claims, workload)
	return u.release(old)
}

// release takes back what add did for a claim that is not valid any more.
func (u *usage) release(old *usedBy) (gone []string) {
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
		gone = append(gone, key)
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
	return gone
}

// inUse tells whether anything uses an image.
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

// pulls returns whose pull secrets may be used for an image: of at most limit
// workloads, always the same ones.
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
// object made are only among them if there is nothing else.
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

// unusedFor tells whether nothing has used a reference for so long, as far as is
// known.
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

// prune drops what is remembered about references unused for that long: then it
// does not matter any more since when.
func (u *usage) prune(atLeast time.Duration) {
	maps.DeleteFunc(u.idle, func(_ string, since time.Time) bool { return u.clock.Since(since) >= atLeast })
}

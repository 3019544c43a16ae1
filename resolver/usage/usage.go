// Package usage has which images are in use, by what and with which pull secrets, which
// images nodes hold, and of how many images each namespace may have objects.
package usage

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

const (
	// DefaultAccount is the service account of pods that name none.
	DefaultAccount = "default"
	// MaxSecrets bounds the pull secrets of a workload and its service account together.
	MaxSecrets = 32
)

// Pull has which pull secrets a workload's images are pulled with.
type Pull struct {
	Namespace, ServiceAccount string
	// Secrets are the names of imagePullSecrets, separated by commas.
	Secrets string
}

// WorkloadImages is what a workload needs.
type WorkloadImages struct {
	Workload corev1.ObjectReference
	// Controlled marks pods that another object made: that object gets the events.
	Controlled bool
	// Settled marks objects all of whose pods are made from the template they have now. The
	// pods name what they run themselves: an image that only the template names is one that
	// admission replaced.
	Settled bool
	Pull    Pull
	// Images as written in the workload.
	Images []string
}

// Image is what a workload may mean by an image name: full references, in the
// order in which a container runtime tries them. It is the unit of work.
type Image struct {
	// Key identifies the image: the references, separated by spaces.
	Key        string
	References []string
}

// NewImage returns the image of references.
func NewImage(references []string) Image {
	return Image{Key: strings.Join(references, " "), References: references}
}

// ImageOf returns the image that a key identifies.
func ImageOf(key string) Image { return Image{Key: key, References: strings.Split(key, " ")} }

// Registry is the host of the first reference.
func (i Image) Registry() string {
	host, _, _ := strings.Cut(i.References[0], "/")
	return host
}

// Usage has which images are in use, and by what.
type Usage struct {
	// expand turns a name into the references it may mean.
	expand func(image string) ([]string, error)
	clock  clock.PassiveClock
	// keep is how long the time since a reference became idle matters. 0 means
	// that only pruneLocked forgets it.
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
	WorkloadImages
	// keys of the images for which there is room.
	keys []string
	// waiting has the indexes in images of the others.
	waiting []int32
}

type used struct {
	Image
	// since is when it came into use, as far as this process has seen.
	since time.Time
	by    map[*usedBy]struct{}
	// pulls counts the workloads with the same pull secrets, without those that are settled:
	// none if the image is not in use. A small map has room for eight
	// keys, and most images have one: handles make that half a KiB less for each image.
	pulls map[unique.Handle[Pull]]int
}

// InUse reports whether more than settled objects name the image.
func (u *used) inUse() bool { return u != nil && len(u.pulls) > 0 }

// New returns Usage of nothing. expand returns the references that a name may mean; keep is how
// long the time since a reference became idle matters, 0 for ever; images bound the names.
func New(expand func(string) ([]string, error), clock clock.PassiveClock, keep time.Duration, images Limits) *Usage {
	return &Usage{
		expand: expand, clock: clock, keep: keep, begun: clock.Now(), names: newNames(images),
		byWorkload: map[corev1.ObjectReference]*usedBy{}, over: map[string]map[*usedBy]struct{}{}, images: map[string]*used{},
		references: map[string][]string{}, idle: map[string]idling{},
	}
}

// InvalidName is an image name that no container runtime accepts.
type InvalidName struct {
	Name string
	Err  error
}

// Change is what another workload, or another state of one, changed.
type Change struct {
	// Added are images that nothing used before, or not with these pull secrets.
	Added []Image
	// Shared are the other images that are new to the workload: something else
	// uses them already, with the same pull secrets.
	Shared []Image
	// Invalid are the invalid image names that are new to the workload.
	Invalid []InvalidName
	// Over is set if the workload has names for which there is no room, and had none before. first is
	// one of them.
	Over  bool
	First Image
	// Unused are the keys of images that nothing uses any longer.
	Unused []string
}

// Set stores what a workload needs, and replaces what it needed before.
func (u *Usage) Set(c WorkloadImages) Change {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.byWorkload[c.Workload]
	if old != nil && old.Pull == c.Pull && old.Settled == c.Settled && slices.Equal(old.Images, c.Images) {
		return Change{}
	}
	var changed Change
	entry, retained := &usedBy{WorkloadImages: c}, map[string]bool{}
	if old != nil {
		for _, key := range old.keys {
			retained[key] = true
		}
	}
	seen := make(map[string]bool, len(c.Images))
	var images, others []Image
	var indexes []int32 // of the others
	for at, name := range c.Images {
		references, err := u.expand(name)
		if err != nil {
			if old == nil || !slices.Contains(old.Images, name) {
				changed.Invalid = append(changed.Invalid, InvalidName{name, err})
			}
			continue
		}
		image := NewImage(references)
		if seen[image.Key] {
			continue
		}
		seen[image.Key] = true
		// What it had it keeps, and what it no longer has makes room.
		if retained[image.Key] {
			images = append(images, image)
		} else {
			others, indexes = append(others, image), append(indexes, int32(at)) //nolint:gosec // of the images of one object
		}
	}
	for key := range retained {
		if !seen[key] {
			u.names.remove(c.Pull.Namespace, key)
		}
	}
	for i, image := range others {
		// After one without room, those that others of the namespace name as well.
		if full := entry.waiting != nil; (!full || u.names.has(c.Pull.Namespace, image.Key)) && u.names.add(c.Pull.Namespace, image.Key) {
			images = append(images, image)
			continue
		}
		if entry.waiting == nil {
			changed.Over, changed.First = true, image
		}
		entry.waiting = append(entry.waiting, indexes[i])
	}
	for _, image := range images {
		entry.keys = append(entry.keys, image.Key)
		if u.addLocked(image, entry) {
			changed.Added = append(changed.Added, image)
		} else if u.images[image.Key].inUse() && !retained[image.Key] {
			changed.Shared = append(changed.Shared, image)
		}
	}
	u.byWorkload[c.Workload] = entry
	wasOver := u.dropOverLocked(old)
	if changed.Over {
		if u.over[c.Pull.Namespace] == nil {
			u.over[c.Pull.Namespace] = map[*usedBy]struct{}{}
		}
		u.over[c.Pull.Namespace][entry] = struct{}{}
		changed.Over = !wasOver
	}
	// Last, so that an image that stays in use is never idle.
	changed.Unused = u.releaseLocked(old)
	return changed
}

// dropOver forgets that there is no room for names of a workload, and reports whether there was none.
func (u *Usage) dropOverLocked(entry *usedBy) bool {
	if entry == nil {
		return false
	}
	workloads := u.over[entry.Pull.Namespace]
	_, found := workloads[entry]
	if delete(workloads, entry); len(workloads) == 0 {
		delete(u.over, entry.Pull.Namespace)
	}
	return found
}

// Admitted is an image for which there is room now.
type Admitted struct {
	Image  Image
	Images WorkloadImages
}

// Admit returns images for which there had been no room and now is, those that are new in use.
func (u *Usage) Admit() (added []Admitted) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for namespace, workloads := range u.over {
		for entry := range workloads {
			if !u.names.hasRoom(namespace) {
				break
			}
			for len(entry.waiting) > 0 {
				references, err := u.expand(entry.Images[entry.waiting[0]])
				image := NewImage(references)
				if err == nil && !u.names.add(namespace, image.Key) {
					break
				}
				if entry.waiting = entry.waiting[1:]; err != nil {
					continue
				}
				entry.keys = append(entry.keys, image.Key)
				if u.addLocked(image, entry) {
					added = append(added, Admitted{image, entry.WorkloadImages})
				}
			}
			if len(entry.waiting) == 0 {
				u.dropOverLocked(entry)
			}
		}
	}
	return added
}

// add notes that a workload needs an image, and reports whether that is new:
// nothing used the image before, or not with these pull secrets.
func (u *Usage) addLocked(image Image, by *usedBy) bool {
	entry := u.images[image.Key]
	if entry == nil {
		entry = &used{Image: image, by: map[*usedBy]struct{}{}, pulls: map[unique.Handle[Pull]]int{}}
		u.images[image.Key] = entry
	}
	entry.by[by] = struct{}{}
	if by.Settled {
		return false
	}
	if !entry.inUse() {
		entry.since = u.clock.Now()
		for _, reference := range image.References {
			u.references[reference] = append(u.references[reference], image.Key)
			delete(u.idle, reference)
		}
	}
	pull := unique.Make(by.Pull)
	entry.pulls[pull]++
	return entry.pulls[pull] == 1
}

// Unset forgets a workload and returns the keys of images that nothing uses any
// longer.
func (u *Usage) Unset(workload corev1.ObjectReference) (unused []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.byWorkload[workload]
	if old == nil {
		return nil
	}
	delete(u.byWorkload, workload)
	u.dropOverLocked(old)
	for _, key := range old.keys {
		u.names.remove(old.Pull.Namespace, key)
	}
	return u.releaseLocked(old)
}

// release undoes add for what a workload no longer needs, and returns the keys of
// images that nothing uses any longer.
func (u *Usage) releaseLocked(old *usedBy) (unused []string) {
	if old == nil {
		return nil
	}
	for _, key := range old.keys {
		entry := u.images[key]
		delete(entry.by, old)
		if len(entry.by) == 0 {
			delete(u.images, key)
		}
		if old.Settled {
			continue
		}
		pull := unique.Make(old.Pull)
		if entry.pulls[pull]--; entry.pulls[pull] == 0 {
			delete(entry.pulls, pull)
		}
		if entry.inUse() {
			continue
		}
		unused = append(unused, key)
		for _, reference := range entry.References {
			left := slices.DeleteFunc(u.references[reference], func(other string) bool { return other == key })
			if u.references[reference] = left; len(left) == 0 {
				delete(u.references, reference)
				u.idle[reference] = idling{u.clock.Now(), old.Pull.Namespace}
			}
		}
	}
	if u.keep > 0 && u.clock.Since(u.pruned) >= u.keep/10 {
		u.pruneLocked(u.keep)
		u.pruned = u.clock.Now()
	}
	return unused
}

// InUse reports whether a workload uses an image.
func (u *Usage) InUse(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.images[key].inUse()
}

// All returns the images in use.
func (u *Usage) All() []Image {
	u.mu.Lock()
	defer u.mu.Unlock()
	images := make([]Image, 0, len(u.images))
	for _, entry := range u.images {
		if entry.inUse() {
			images = append(images, entry.Image)
		}
	}
	return images
}

// Meaning returns the images in use that may mean one of the references.
func (u *Usage) Meaning(references []string) []Image {
	u.mu.Lock()
	defer u.mu.Unlock()
	var images []Image
	for _, reference := range references {
		for _, key := range u.references[reference] {
			images = append(images, u.images[key].Image)
		}
	}
	return images
}

// PullsFrom returns which pull secrets may be used for an image, those whose turn it is: at
// most limit in a fixed order, from the given one on, and again from the first after the
// last. next is the one after those that are returned. The first ones of each namespace are
// before all second ones, so that none has to wait for the many of another.
func (u *Usage) PullsFrom(key string, from Pull, limit int) (pulls []Pull, next Pull) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.images[key]
	if entry == nil {
		return nil, Pull{}
	}
	for p := range entry.pulls {
		if p.Value() != nodePull {
			pulls = append(pulls, p.Value())
		}
	}
	slices.SortFunc(pulls, comparePulls)
	if len(pulls) <= limit {
		return pulls, Pull{}
	}
	// The place of each in its namespace, also of from if it is gone meanwhile.
	place, count := map[Pull]int{}, map[string]int{}
	for _, p := range pulls {
		if p.Namespace == from.Namespace && comparePulls(p, from) < 0 {
			place[from] = count[p.Namespace] + 1
		}
		place[p] = count[p.Namespace]
		count[p.Namespace]++
	}
	compare := func(a, b Pull) int { return cmp.Or(cmp.Compare(place[a], place[b]), comparePulls(a, b)) }
	slices.SortFunc(pulls, compare)
	at, _ := slices.BinarySearchFunc(pulls, from, compare)
	turned := append(slices.Clone(pulls[at:]), pulls[:at]...)
	return turned[:limit], turned[limit]
}

// PulledWith reports whether a workload uses an image with these pull secrets.
func (u *Usage) PulledWith(key string, p Pull) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.images[key]
	return entry != nil && entry.pulls[unique.Make(p)] > 0
}

func comparePulls(a, b Pull) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ServiceAccount, b.ServiceAccount), cmp.Compare(a.Secrets, b.Secrets))
}

// maxNamespaces bounds the namespaces among which an image's turn is chosen.
const maxNamespaces = 8

// Namespaces returns some of the namespaces that use an image, in no order. An image that
// only nodes hold counts for a namespace without a name.
func (u *Usage) Namespaces(key string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.namespacesLocked(u.images[key])
}

func (u *Usage) namespacesLocked(entry *used) (found []string) {
	if entry == nil {
		return nil
	}
	for p := range entry.pulls {
		if p.Value() == nodePull && len(entry.pulls) > 1 {
			continue
		}
		if namespace := p.Value().Namespace; !slices.Contains(found, namespace) {
			found = append(found, namespace)
		}
		if len(found) == maxNamespaces {
			break
		}
	}
	return found
}

// Tenant is who a reference counts for, and how old its use is.
type Tenant struct {
	// Namespaces are some of those that use it, or the one that used it last; none if
	// that is not known.
	Namespaces []string
	InUse      bool
	// Since is when it came into use, or out of it.
	Since time.Time
}

// TenantOf returns who a reference counts for.
func (u *Usage) TenantOf(reference string) Tenant {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := Tenant{}
	for _, key := range u.references[reference] {
		entry := u.images[key]
		if !t.InUse || entry.since.Before(t.Since) {
			t.Since = entry.since
		}
		t.InUse = true
		t.Namespaces = append(t.Namespaces, u.namespacesLocked(entry)...)
	}
	if t.InUse {
		return t
	}
	if old, ok := u.idle[reference]; ok {
		t.Since = old.since
		if old.namespace != "" {
			t.Namespaces = []string{old.namespace}
		}
		return t
	}
	t.Since = u.begun
	return t
}

// Remember notes since when a reference is unused, as an earlier process knew it or, with
// the zero time, from now on. namespaces are those that used it; none if that is not known.
// It does nothing for a reference in use, or known to be unused.
func (u *Usage) Remember(reference string, since time.Time, namespaces []string) {
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

// ForgetIdle drops what is known of references that are unused and have no object.
func (u *Usage) ForgetIdle(references ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, reference := range references {
		delete(u.idle, reference)
	}
}

// Workloads returns at most limit workloads that use an image. Pods that another
// object made are returned only if nothing else uses it.
func (u *Usage) Workloads(key string, limit int) []corev1.ObjectReference {
	return u.WorkloadsIn(key, "", limit)
}

// WorkloadsIn is workloads for one namespace; for all if it is empty.
func (u *Usage) WorkloadsIn(key, namespace string, limit int) []corev1.ObjectReference {
	u.mu.Lock()
	defer u.mu.Unlock()
	var found, controlled []corev1.ObjectReference
	if entry := u.images[key]; entry != nil {
		for by := range entry.by {
			if by.Pull == nodePull || namespace != "" && by.Workload.Namespace != namespace {
				continue
			}
			if !by.Controlled {
				found = append(found, by.Workload)
			} else if len(controlled) < limit {
				controlled = append(controlled, by.Workload)
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

// UnusedFor reports whether nothing has used a reference for at least that
// long. A reference that was never in use counts from the start of the process.
func (u *Usage) UnusedFor(reference string, atLeast time.Duration) bool {
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

// pruneLocked forgets the idle time of references that have been idle for at least
// that long. unusedFor returns the same without it.
func (u *Usage) pruneLocked(atLeast time.Duration) {
	maps.DeleteFunc(u.idle, func(_ string, old idling) bool { return u.clock.Since(old.since) >= atLeast })
}

// OnlyOnNodes reports whether nodes hold an image and no workload names it.
func (u *Usage) OnlyOnNodes(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.images[key].onlyOnNodes()
}

func (entry *used) onlyOnNodes() bool {
	return entry != nil && len(entry.pulls) == 1 && entry.pulls[unique.Make(nodePull)] > 0
}

// CountOnlyOnNodes counts the images that nodes hold and no workload names.
func (u *Usage) CountOnlyOnNodes() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, entry := range u.images {
		if entry.onlyOnNodes() {
			n++
		}
	}
	return n
}

// CountIdle returns of how many unused references it remembers since when they are.
func (u *Usage) CountIdle() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.idle)
}

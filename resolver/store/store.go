// Package store has what the ImageManifests of a cluster say, and writes them. An object is
// locked for a write (cachedManifest.writing) before Store.mu.
package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// Failure is how the last attempt at a reference failed; zero if it did not.
type Failure struct {
	// Failures in a row.
	Failures int
	// Retry is when the image may be asked for again.
	Retry time.Time
	// Reason and Message of the last failure; empty if there was none, or if a retry
	// has been allowed since.
	Reason, Message string
}

// Store holds the content of the cluster's ImageManifests, without their
// layers. Only the store writes them. There is one writer (the leader), so its
// memory is authoritative: what somebody else changed is put back.
type Store struct {
	client client.Client
	// live reads objects as they are, with their layers.
	live  client.Reader
	clock clock.PassiveClock
	// evicted is called with the references of an object that turned out to be gone: they are no
	// longer known, and have to be asked for again.
	evicted func(references []string)

	mu          sync.Mutex
	byName      map[string]*cachedManifest
	byReference map[string][]*cachedManifest
	// byDigest has the manifests by the digest of their manifest and by those of the
	// indexes that led to them.
	byDigest map[string][]*cachedManifest
	// gone has the objects that were deleted while load listed them. It is nil
	// when no load is running.
	gone map[types.UID]bool
}

// cachedManifest is an ImageManifest in memory. Its fields change under the mutex of the store.
type cachedManifest struct {
	name string
	// writing is held while the object is written.
	writing sync.Mutex
	// exists is set if the object exists. uid is its UID, version its resource version
	// after the last write.
	exists  bool
	uid     types.UID
	version string
	// ended is the UID of an object that was deleted before write noted that it had
	// created it.
	ended types.UID
	// spec has no layers, only their number is kept.
	spec   v1alpha1.ImageManifestSpec
	layers int
	status v1alpha1.ImageManifestStatus
}

// cachedManifestOf returns the manifest of an object that exists.
func cachedManifestOf(object *v1alpha1.ImageManifest) *cachedManifest {
	r := &cachedManifest{name: object.Name, exists: true, uid: object.UID, version: object.ResourceVersion, status: object.Status}
	r.state(&object.Spec)
	return r
}

// state notes what the manifest states.
func (r *cachedManifest) state(spec *v1alpha1.ImageManifestSpec) {
	r.spec, r.layers = *spec, len(spec.Layers)
	r.spec.Layers = nil
}

// New returns a Store that writes with a client, and reads objects as they are with live. It calls evicted
// with the references of an object that turned out to be gone.
func New(c client.Client, live client.Reader, clock clock.PassiveClock, evicted func(references []string)) *Store {
	return &Store{
		client: c, live: live, clock: clock, evicted: evicted,
		byName: map[string]*cachedManifest{}, byReference: map[string][]*cachedManifest{}, byDigest: map[string][]*cachedManifest{},
	}
}

// Load takes over the objects that exist.
func (s *Store) Load(ctx context.Context) error {
	return s.load(func() ([]*cachedManifest, error) { return listAll(ctx, s.live) })
}

// load takes over the objects that list returns.
func (s *Store) load(list func() ([]*cachedManifest, error)) error {
	s.mu.Lock()
	s.gone = map[types.UID]bool{}
	s.mu.Unlock()
	manifests, err := list()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.gone = nil }()
	if err != nil {
		return err
	}
	for _, r := range manifests {
		if s.gone[r.uid] {
			continue
		}
		if reason := r.failure().Reason; reason == v1alpha1.ReasonUnauthorized || reason == v1alpha1.ReasonDenied {
			r.status.RetryTime = nil // credentials and policy may have changed with the restart
		}
		s.byName[r.name] = r
		s.indexLocked(r)
	}
	return nil
}

// indexLocked adds a manifest to the maps. Callers that change a manifest call unindex
// before the change and index after it.
func (s *Store) indexLocked(r *cachedManifest) {
	for _, reference := range r.status.References {
		s.byReference[reference.Name] = append(s.byReference[reference.Name], r)
	}
	for digest := range r.digests() {
		s.byDigest[digest] = append(s.byDigest[digest], r)
	}
}

func (s *Store) unindexLocked(r *cachedManifest) {
	drop := func(from map[string][]*cachedManifest, key string) {
		left := slices.DeleteFunc(slices.Clone(from[key]), func(other *cachedManifest) bool { return other == r })
		if from[key] = left; len(left) == 0 {
			delete(from, key)
		}
	}
	for _, reference := range r.status.References {
		drop(s.byReference, reference.Name)
	}
	for digest := range r.digests() {
		drop(s.byDigest, digest)
	}
}

func (r *cachedManifest) digests() map[string]bool {
	digests := map[string]bool{}
	if r.spec.Digest == "" {
		return digests
	}
	digests[r.spec.Digest] = true
	for _, reference := range r.status.References {
		if reference.Digest != "" {
			digests[reference.Digest] = true
		}
	}
	return digests
}

// Answer is what is known about a reference.
type Answer struct {
	// Digest that the registry has for the reference.
	Digest string
	// index is set if the digest is that of an index, which was searched for
	// platforms.
	index     bool
	platforms []string
	// Confirmed is when the registry last confirmed the digest.
	Confirmed time.Time
	// Private is set if only pull secrets open the image.
	Private bool
}

// Covers reports whether the answer is complete for the platforms.
func (a *Answer) Covers(platforms []string) bool {
	return !a.index || !slices.ContainsFunc(platforms, func(p string) bool { return !slices.Contains(a.platforms, p) })
}

// Lookup returns what is known about a reference, or nil if it is not resolved.
func (s *Store) Lookup(reference string) *Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest := DigestOf(reference)
	manifests := s.byReference[reference]
	if digest != "" {
		manifests = s.byDigest[digest] // content is the same in every repository
	}
	var found *Answer
	for _, r := range manifests {
		if r.spec.Digest == "" {
			continue
		}
		if r.spec.Digest == digest {
			return &Answer{Digest: digest}
		}
		for i := range r.status.References {
			ref := &r.status.References[i]
			if digest == "" && ref.Name != reference || digest != "" && ref.Digest != digest {
				continue
			}
			at := confirmedAt(ref)
			if found == nil || ref.Digest != found.Digest && at.After(found.Confirmed) {
				found = &Answer{Digest: ref.Digest, index: ref.Digest != r.spec.Digest}
			}
			if ref.Digest != found.Digest {
				continue
			}
			// Each object of an index states which platforms it is for.
			found.platforms = append(found.platforms, ref.Platforms...)
			found.Private = found.Private || ref.Private
			if at.After(found.Confirmed) {
				found.Confirmed = at
			}
		}
	}
	return found
}

// Failure returns how the last attempt at a reference failed, according to the
// objects, or zero if it did not fail.
func (s *Store) Failure(reference string) Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.byReference[reference] {
		if a := r.failure(); a.Reason != "" {
			return a
		}
	}
	return Failure{}
}

func (r *cachedManifest) failure() Failure {
	a := Failure{Failures: int(r.status.Failures)}
	for _, kind := range []string{v1alpha1.ConditionResolved, v1alpha1.ConditionConfirmed} {
		if c := meta.FindStatusCondition(r.status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			a.Reason, a.Message = c.Reason, c.Message
		}
	}
	if r.status.RetryTime != nil {
		a.Retry = r.status.RetryTime.Time
	}
	return a
}

// Limited returns the registries that asked to wait, and when they may be asked
// again.
func (s *Store) Limited() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := map[string]time.Time{}
	for _, r := range s.byName {
		a := r.failure()
		if a.Reason != v1alpha1.ReasonRateLimited || len(r.status.References) == 0 {
			continue
		}
		registry, _, _ := strings.Cut(r.status.References[0].Name, "/")
		if a.Retry.After(until[registry]) {
			until[registry] = a.Retry
		}
	}
	return until
}

// Count returns how many objects there are with and without content.
func (s *Store) Count() (resolved, unresolved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.byName {
		switch {
		case !r.exists:
		case r.spec.Digest != "":
			resolved++
		default:
			unresolved++
		}
	}
	return resolved, unresolved
}

// Resolved stores the registry's answer for a reference.
func (s *Store) Resolved(ctx context.Context, reference string, found *registry.Resolution, platforms []string) error {
	return s.learn(ctx, v1alpha1.ImageReference{Name: reference}, found, platforms)
}

// ResolvedPrivately is resolved for an image that only pull secrets open.
func (s *Store) ResolvedPrivately(ctx context.Context, reference string, found *registry.Resolution, platforms []string) error {
	return s.learn(ctx, v1alpha1.ImageReference{Name: reference, Private: true}, found, platforms)
}

func (s *Store) learn(ctx context.Context, ref v1alpha1.ImageReference, found *registry.Resolution, platforms []string) error {
	// One time for all objects of an index: readers compare them.
	ref.Digest, ref.LastConfirmed = found.Digest, s.now()
	names := map[string]bool{}
	for i := range found.Manifests {
		spec := &found.Manifests[i]
		if found.Index {
			ref.Platforms = covered(found.Manifests, i, platforms)
		}
		name, err := s.point(ctx, spec.Digest, spec, ref, func(status *v1alpha1.ImageManifestStatus) {
			message := fmt.Sprintf("%d layers, %d compressed bytes", len(spec.Layers), spec.Size)
			s.condition(status, v1alpha1.ConditionResolved, v1alpha1.ReasonResolved, message)
			s.confirm(status, ref.Name)
		})
		if err != nil {
			return err
		}
		names[name] = true
	}
	// Objects of the reference's previous state: other content, or a failure.
	for _, name := range s.holders(ref.Name) {
		if !names[name] {
			if err := s.remove(ctx, name, ref.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// covered returns the platforms that the object of one manifest of an index stands
// for. The last object written stands for the platforms without a manifest too. So
// if a write fails, or an object is deleted, the platforms it stands for are asked
// for again.
func covered(manifests []v1alpha1.ImageManifestSpec, i int, platforms []string) []string {
	owner := func(platform string) int {
		at := slices.IndexFunc(manifests, func(m v1alpha1.ImageManifestSpec) bool {
			return m.Platform == platform || strings.HasPrefix(m.Platform, platform+"/")
		})
		if at < 0 {
			return len(manifests) - 1
		}
		return at
	}
	return slices.DeleteFunc(slices.Clone(platforms), func(p string) bool { return owner(p) != i })
}

// Adopt adds a reference by digest to the objects that have its content already. No
// registry has to be asked. It may have failed before the content was resolved for another
// reference.
func (s *Store) Adopt(ctx context.Context, reference string) error {
	if err := s.RemoveUnresolved(ctx, reference); err != nil {
		return err
	}
	digest := DigestOf(reference)
	s.mu.Lock()
	manifests := map[string]v1alpha1.ImageReference{} // by the digest of the manifest
	for _, r := range s.byDigest[digest] {
		ref := manifests[r.spec.Digest]
		ref.Name, ref.Digest = reference, digest
		for i := range r.status.References {
			if other := &r.status.References[i]; other.Digest == digest {
				ref.Platforms = slices.Compact(slices.Sorted(slices.Values(append(ref.Platforms, other.Platforms...))))
				ref.LastConfirmed = latest(ref.LastConfirmed, other.LastConfirmed)
				ref.Private = ref.Private || other.Private
			}
		}
		manifests[r.spec.Digest] = ref
	}
	s.mu.Unlock()
	for manifest, ref := range manifests {
		if _, err := s.point(ctx, manifest, nil, ref, func(*v1alpha1.ImageManifestStatus) {}); err != nil {
			return err
		}
	}
	return nil
}

func latest(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && a.Before(b) {
		return b
	}
	return a
}

// Confirmed notes that a tag still has a digest. Objects with another digest
// for the tag lose the tag.
func (s *Store) Confirmed(ctx context.Context, reference, digest string) error {
	now := s.now()
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) {
		at := slices.IndexFunc(status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
		if at < 0 {
			return
		}
		if status.References[at].Digest != digest {
			status.References = slices.Delete(status.References, at, at+1)
			return
		}
		status.References[at].LastConfirmed, status.References[at].UnusedSince = now, nil
		s.confirm(status, reference)
	})
}

// confirm notes that the registry answered.
func (s *Store) confirm(status *v1alpha1.ImageManifestStatus, reference string) {
	status.Failures, status.RetryTime = 0, nil
	if DigestOf(reference) != "" && meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionConfirmed) == nil {
		return // a digest does not have to be confirmed
	}
	s.condition(status, v1alpha1.ConditionConfirmed, v1alpha1.ReasonResolved, "the registry has this for "+reference)
}

// NotConfirmed notes that the registry did not say whether a tag still points
// to the same digest. What is known stays.
func (s *Store) NotConfirmed(ctx context.Context, reference string, a Failure) error {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) {
		s.condition(status, v1alpha1.ConditionConfirmed, a.Reason, a.Message)
		setFailure(status, a)
	})
}

// NotResolved notes why nothing is known about a reference.
func (s *Store) NotResolved(ctx context.Context, reference string, a Failure) error {
	return s.write(ctx, v1alpha1.UnresolvedName(reference), &v1alpha1.ImageManifestSpec{}, func(status *v1alpha1.ImageManifestStatus) {
		_ = setReference(status, v1alpha1.ImageReference{Name: reference}) // there is one
		s.condition(status, v1alpha1.ConditionResolved, a.Reason, a.Message)
		setFailure(status, a)
	})
}

func setFailure(status *v1alpha1.ImageManifestStatus, a Failure) {
	status.Failures = int32(min(a.Failures, 1<<30)) //nolint:gosec // bounded
	status.RetryTime = &metav1.Time{Time: a.Retry}
}

// NoteUnused notes since when a reference is unused; with the zero time, that it is used.
func (s *Store) NoteUnused(ctx context.Context, reference string, since time.Time) error {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) {
		for i := range status.References {
			ref := &status.References[i]
			if ref.Name != reference {
				continue
			}
			if ref.UnusedSince = nil; !since.IsZero() {
				ref.UnusedSince = &metav1.Time{Time: since}
			}
		}
	})
}

// ReferenceInfo is what the objects say about a reference, as far as collect needs it.
type ReferenceInfo struct {
	Reference string
	// Resolved is set if the content is known.
	Resolved, Private bool
	// Layers of all objects that have it.
	Layers int
	// Reason of the last failure.
	Reason string
	// Unused is since when nothing uses it; zero if something does, or nobody noted it.
	Unused time.Time
}

// All returns all references that objects have.
func (s *Store) All() []ReferenceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make([]ReferenceInfo, 0, len(s.byReference))
	for reference, manifests := range s.byReference {
		h := ReferenceInfo{Reference: reference}
		for _, r := range manifests {
			h.Resolved = h.Resolved || r.spec.Digest != ""
			h.Layers += r.layers
			h.Reason = r.failure().Reason
			for i := range r.status.References {
				if ref := &r.status.References[i]; ref.Name == reference {
					h.Private = h.Private || ref.Private
					if ref.UnusedSince != nil {
						h.Unused = ref.UnusedSince.Time
					}
				}
			}
		}
		found = append(found, h)
	}
	return found
}

// Has reports whether an object has a reference.
func (s *Store) Has(reference string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byReference[reference]) > 0
}

// LayersOf returns how many layers the manifests have that a digest names.
func (s *Store) LayersOf(digest string) (layers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{} // one manifest may have several objects
	for _, r := range s.byDigest[digest] {
		if !seen[r.spec.Digest] {
			layers += r.layers
		}
		seen[r.spec.Digest] = true
	}
	return layers
}

// RemoveReference forgets a reference, and objects that no other points to.
func (s *Store) RemoveReference(ctx context.Context, reference string) error {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) { dropReference(status, reference) })
}

// RemoveUnresolved forgets that a reference was not resolved.
func (s *Store) RemoveUnresolved(ctx context.Context, reference string) error {
	return s.remove(ctx, v1alpha1.UnresolvedName(reference), reference)
}

// each changes all objects that have a reference.
func (s *Store) each(ctx context.Context, reference string, change func(*v1alpha1.ImageManifestStatus)) error {
	for _, name := range s.holders(reference) {
		if err := s.write(ctx, name, nil, change); err != nil {
			return err
		}
	}
	return nil
}

// remove takes a reference from one object.
func (s *Store) remove(ctx context.Context, name, reference string) error {
	return s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) { dropReference(status, reference) })
}

func dropReference(status *v1alpha1.ImageManifestStatus, reference string) {
	status.References = slices.DeleteFunc(status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
}

// Deleted notes that an object was deleted. If the store itself deleted it, it has no manifest of it any more.
func (s *Store) Deleted(name string, uid types.UID) {
	s.mu.Lock()
	if s.gone != nil {
		s.gone[uid] = true
	}
	var evicted []string
	switch r := s.byName[name]; {
	case r == nil:
	case !r.exists:
		r.ended = uid
	case r.uid == uid:
		evicted = s.dropLocked(r)
	}
	s.mu.Unlock()
	s.evicted(evicted)
}

// dropLocked forgets a manifest and returns its references. Another goroutine may still
// be waiting to write it.
func (s *Store) dropLocked(r *cachedManifest) (references []string) {
	for i := range r.status.References {
		references = append(references, r.status.References[i].Name)
	}
	s.unindexLocked(r)
	r.exists, r.uid, r.version, r.status = false, "", "", v1alpha1.ImageManifestStatus{}
	delete(s.byName, r.name)
	return references
}

// Adopted reports whether the content of a reference by digest is known and all of it has the
// reference: each manifest of an index, and no object that states that it is not resolved.
func (s *Store) Adopted(reference string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	named := map[string]bool{}
	for _, r := range s.byReference[reference] {
		named[r.spec.Digest] = true
	}
	content := s.byDigest[DigestOf(reference)]
	return len(content) > 0 && !named[""] && !slices.ContainsFunc(content, func(r *cachedManifest) bool { return !named[r.spec.Digest] })
}

// holders returns the names of the objects that have a reference.
func (s *Store) holders(reference string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, r := range s.byReference[reference] {
		names = append(names, r.name)
	}
	return names
}

func confirmedAt(ref *v1alpha1.ImageReference) time.Time {
	if ref.LastConfirmed == nil {
		return time.Time{}
	}
	return ref.LastConfirmed.Time
}

func (s *Store) condition(status *v1alpha1.ImageManifestStatus, kind, reason, message string) {
	value := metav1.ConditionFalse
	if reason == v1alpha1.ReasonResolved {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, LastTransitionTime: *s.now(),
	})
}

// now returns the time in the precision of objects, seconds.
func (s *Store) now() *metav1.Time {
	return &metav1.Time{Time: s.clock.Now().Truncate(time.Second)}
}

// DigestOf returns the digest of a reference, empty for a tag. If there is a
// digest, it alone determines the content.
func DigestOf(reference string) string {
	_, digest, _ := strings.Cut(reference, "@")
	return digest
}

// pageSize is how many objects are read at a time, with their layers.
const pageSize = 500

// listAll reads all ImageManifests.
func listAll(ctx context.Context, reader client.Reader) (all []*cachedManifest, err error) {
	for next := ""; ; {
		var page v1alpha1.ImageManifestList
		if err := reader.List(ctx, &page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return nil, err
		}
		for i := range page.Items {
			all = append(all, cachedManifestOf(&page.Items[i]))
		}
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

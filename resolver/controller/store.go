package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// store holds the content of the cluster's ImageManifests, without their
// layers. Only the store writes them. There is one writer (the leader), so its
// memory is authoritative and writes need no preconditions.
//
// Methods that write return the references that were lost, with or without an
// error: an object turned out to be gone, and the references it had are no
// longer known. The caller has to ask for them again.
type store struct {
	client client.Client
	clock  clock.PassiveClock

	mu          sync.Mutex
	records     map[string]*record
	byReference map[string][]*record
	// byDigest has the records by the digest of their manifest and by those of the
	// indexes that led to them.
	byDigest map[string][]*record
	// gone has the objects that were deleted while load listed them. It is nil
	// when no load is running.
	gone map[types.UID]bool
}

// record is an ImageManifest. Its fields change under the mutex of the store.
type record struct {
	name string
	// writing is held while the object is written.
	writing sync.Mutex
	// exists is set if the object exists. uid is its UID.
	exists bool
	uid    types.UID
	// ended is the UID of an object that was deleted before write noted that it had
	// created it.
	ended  types.UID
	spec   v1alpha1.ImageManifestSpec
	status v1alpha1.ImageManifestStatus
}

func newStore(c client.Client, clock clock.PassiveClock) *store {
	return &store{
		client: c, clock: clock,
		records: map[string]*record{}, byReference: map[string][]*record{}, byDigest: map[string][]*record{},
	}
}

// load reads the objects that list returns into memory.
func (s *store) load(list func() ([]v1alpha1.ImageManifest, error)) error {
	s.mu.Lock()
	s.gone = map[types.UID]bool{}
	s.mu.Unlock()
	objects, err := list()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.gone = nil }()
	if err != nil {
		return err
	}
	for i := range objects {
		object := &objects[i]
		if s.gone[object.UID] {
			continue
		}
		r := &record{name: object.Name, exists: true, uid: object.UID, spec: object.Spec, status: object.Status}
		r.spec.Layers = nil
		s.records[r.name] = r
		s.index(r)
	}
	return nil
}

// index adds a record to the maps. Callers that change a record call unindex
// before the change and index after it.
func (s *store) index(r *record) {
	for _, reference := range r.status.References {
		s.byReference[reference.Name] = append(s.byReference[reference.Name], r)
	}
	for digest := range r.digests() {
		s.byDigest[digest] = append(s.byDigest[digest], r)
	}
}

func (s *store) unindex(r *record) {
	drop := func(from map[string][]*record, key string) {
		left := slices.DeleteFunc(slices.Clone(from[key]), func(other *record) bool { return other == r })
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

func (r *record) digests() map[string]bool {
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

// answer is what is known about a reference.
type answer struct {
	// digest that the registry has for the reference.
	digest string
	// index is set if the digest is that of an index, which was searched for
	// platforms.
	index     bool
	platforms []string
	// confirmed is when the registry last confirmed the digest.
	confirmed time.Time
}

// covers reports whether the answer is complete for the platforms.
func (a *answer) covers(platforms []string) bool {
	return !a.index || !slices.ContainsFunc(platforms, func(p string) bool { return !slices.Contains(a.platforms, p) })
}

// lookup returns what is known about a reference, or nil if it is not resolved.
func (s *store) lookup(reference string) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest := digestOf(reference)
	records := s.byReference[reference]
	if digest != "" {
		records = s.byDigest[digest] // content is the same in every repository
	}
	var found *answer
	for _, r := range records {
		if r.spec.Digest == "" {
			continue
		}
		if r.spec.Digest == digest {
			return &answer{digest: digest}
		}
		for i := range r.status.References {
			ref := &r.status.References[i]
			if digest == "" && ref.Name != reference || digest != "" && ref.Digest != digest {
				continue
			}
			at := confirmedAt(ref)
			if found == nil || ref.Digest != found.digest && at.After(found.confirmed) {
				found = &answer{digest: ref.Digest, index: ref.Digest != r.spec.Digest}
			}
			if ref.Digest != found.digest {
				continue
			}
			// Each object of an index says which platforms it is for.
			found.platforms = append(found.platforms, ref.Platforms...)
			if at.After(found.confirmed) {
				found.confirmed = at
			}
		}
	}
	return found
}

// failure returns how the last attempt at a reference failed, according to the
// objects, or zero if it did not fail.
func (s *store) failure(reference string) attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.byReference[reference] {
		if a := r.failure(); a.reason != "" {
			return a
		}
	}
	return attempt{}
}

func (r *record) failure() attempt {
	a := attempt{failures: int(r.status.Failures)}
	for _, kind := range []string{v1alpha1.ConditionResolved, v1alpha1.ConditionConfirmed} {
		if c := meta.FindStatusCondition(r.status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			a.reason, a.message = c.Reason, c.Message
		}
	}
	if r.status.RetryTime != nil {
		a.retry = r.status.RetryTime.Time
	}
	return a
}

// limited returns the registries that asked to wait, and when they may be asked
// again.
func (s *store) limited() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := map[string]time.Time{}
	for _, r := range s.records {
		a := r.failure()
		if a.reason != v1alpha1.ReasonRateLimited || len(r.status.References) == 0 {
			continue
		}
		registry := imageOf(r.status.References[0].Name).registry()
		if a.retry.After(until[registry]) {
			until[registry] = a.retry
		}
	}
	return until
}

// references returns all references that objects have, resolved or not.
func (s *store) references() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.byReference))
}

// count returns how many objects there are with and without content.
func (s *store) count() (resolved, unresolved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
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

// resolved stores the registry's answer for a reference.
func (s *store) resolved(ctx context.Context, reference string, found *registry.Resolution, platforms []string) (lost []string, err error) {
	names := map[string]bool{}
	for i := range found.Manifests {
		spec := &found.Manifests[i]
		ref := v1alpha1.ImageReference{Name: reference, Digest: found.Digest, LastConfirmed: s.now()}
		if found.Index {
			ref.Platforms = covered(found.Manifests, i, platforms)
		}
		names[v1alpha1.ManifestName(spec.Digest)] = true
		gone, err := s.write(ctx, v1alpha1.ManifestName(spec.Digest), spec, func(status *v1alpha1.ImageManifestStatus) {
			setReference(status, ref)
			message := fmt.Sprintf("%d layers, %d compressed bytes", len(spec.Layers), spec.Size)
			s.condition(status, v1alpha1.ConditionResolved, v1alpha1.ReasonResolved, message)
			s.confirm(status, reference)
		})
		if lost = append(lost, gone...); err != nil {
			return lost, err
		}
	}
	// Objects of the reference's previous state: other content, or a failure.
	for _, name := range s.holders(reference) {
		if !names[name] {
			gone, err := s.remove(ctx, name, reference)
			if lost = append(lost, gone...); err != nil {
				return lost, err
			}
		}
	}
	return lost, nil
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

// adopt adds a reference by digest to the objects that have its content already. No
// registry has to be asked.
func (s *store) adopt(ctx context.Context, reference string) (lost []string, err error) {
	digest := digestOf(reference)
	s.mu.Lock()
	names := map[string]v1alpha1.ImageReference{}
	for _, r := range s.byDigest[digest] {
		ref := v1alpha1.ImageReference{Name: reference, Digest: digest}
		for i := range r.status.References {
			if other := &r.status.References[i]; other.Digest == digest {
				ref.Platforms = slices.Compact(slices.Sorted(slices.Values(append(ref.Platforms, other.Platforms...))))
				ref.LastConfirmed = other.LastConfirmed
			}
		}
		names[r.name] = ref
	}
	s.mu.Unlock()
	for name, ref := range names {
		gone, err := s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) { setReference(status, ref) })
		if lost = append(lost, gone...); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// confirmed notes that a tag still has a digest. Objects with another digest
// for the tag lose the tag.
func (s *store) confirmed(ctx context.Context, reference, digest string) (lost []string, err error) {
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
		status.References[at].LastConfirmed = now
		s.confirm(status, reference)
	})
}

// confirm notes that the registry answered.
func (s *store) confirm(status *v1alpha1.ImageManifestStatus, reference string) {
	status.Failures, status.RetryTime = 0, nil
	if digestOf(reference) != "" && meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionConfirmed) == nil {
		return // a digest does not have to be confirmed
	}
	s.condition(status, v1alpha1.ConditionConfirmed, v1alpha1.ReasonResolved, "the registry has this for "+reference)
}

// notConfirmed notes that the registry did not say whether a tag still points
// to the same digest. What is known stays.
func (s *store) notConfirmed(ctx context.Context, reference string, a attempt) (lost []string, err error) {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) {
		s.condition(status, v1alpha1.ConditionConfirmed, a.reason, a.message)
		setFailure(status, a)
	})
}

// notResolved notes why nothing is known about a reference.
func (s *store) notResolved(ctx context.Context, reference string, a attempt) (lost []string, err error) {
	return s.write(ctx, v1alpha1.UnresolvedName(reference), &v1alpha1.ImageManifestSpec{}, func(status *v1alpha1.ImageManifestStatus) {
		setReference(status, v1alpha1.ImageReference{Name: reference})
		s.condition(status, v1alpha1.ConditionResolved, a.reason, a.message)
		setFailure(status, a)
	})
}

func setFailure(status *v1alpha1.ImageManifestStatus, a attempt) {
	status.Failures = int32(min(a.failures, 1<<30)) //nolint:gosec // bounded
	status.RetryTime = &metav1.Time{Time: a.retry}
}

// removeReference forgets a reference, and objects that no other points to.
func (s *store) removeReference(ctx context.Context, reference string) (lost []string, err error) {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) { dropReference(status, reference) })
}

// removeUnresolved forgets that a reference was not resolved.
func (s *store) removeUnresolved(ctx context.Context, reference string) (lost []string, err error) {
	return s.remove(ctx, v1alpha1.UnresolvedName(reference), reference)
}

// each changes all objects that have a reference.
func (s *store) each(ctx context.Context, reference string, change func(*v1alpha1.ImageManifestStatus)) (lost []string, err error) {
	for _, name := range s.holders(reference) {
		gone, err := s.write(ctx, name, nil, change)
		if lost = append(lost, gone...); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// remove takes a reference from one object.
func (s *store) remove(ctx context.Context, name, reference string) (lost []string, err error) {
	return s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) { dropReference(status, reference) })
}

func dropReference(status *v1alpha1.ImageManifestStatus, reference string) {
	status.References = slices.DeleteFunc(status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
}

// deleted notes that an object was deleted, and returns the references that
// were lost with it. There are none if the store itself deleted it, since it
// then has no record of it.
func (s *store) deleted(name string, uid types.UID) (lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		s.gone[uid] = true
	}
	switch r := s.records[name]; {
	case r == nil:
	case !r.exists:
		r.ended = uid
	case r.uid == uid:
		return s.drop(r)
	}
	return nil
}

// drop forgets a record and returns its references. Another goroutine may still
// be waiting to write it.
func (s *store) drop(r *record) (references []string) {
	for i := range r.status.References {
		references = append(references, r.status.References[i].Name)
	}
	s.unindex(r)
	r.exists, r.uid, r.status = false, "", v1alpha1.ImageManifestStatus{}
	delete(s.records, r.name)
	return references
}

// holders returns the names of the objects that have a reference.
func (s *store) holders(reference string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, r := range s.byReference[reference] {
		names = append(names, r.name)
	}
	return names
}

// acquire returns the record of a name, locked for writing.
func (s *store) acquire(name string) *record {
	for {
		s.mu.Lock()
		r := s.records[name]
		if r == nil {
			r = &record{name: name}
			s.records[name] = r
		}
		s.mu.Unlock()
		r.writing.Lock()
		s.mu.Lock()
		current := s.records[name] == r
		s.mu.Unlock()
		if current {
			return r
		}
		r.writing.Unlock() // it was dropped meanwhile
	}
}

// write changes the status of an object, with at most one request; two if an
// object that is to be created appeared meanwhile. An object that does not
// exist is created only if a spec is given. An object without references is
// deleted. If it turns out that somebody else deleted the object, its
// references are lost.
func (s *store) write(ctx context.Context, name string, spec *v1alpha1.ImageManifestSpec, change func(*v1alpha1.ImageManifestStatus)) (lost []string, err error) {
	r := s.acquire(name)
	defer r.writing.Unlock()

	s.mu.Lock()
	exists, uid := r.exists, r.uid
	before := r.status.DeepCopy()
	s.mu.Unlock()
	status := before.DeepCopy()
	change(status)

	object := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	none := len(status.References) == 0
	switch {
	case !exists && (spec == nil || none): // it does not exist and is not needed
		none = true
	case none:
		err = client.IgnoreNotFound(s.client.Delete(ctx, object))
	case !exists:
		object.Spec, object.Status = *spec, bounded(status)
		if err = s.client.Create(ctx, object); apierrors.IsAlreadyExists(err) {
			err = s.patch(ctx, object, status)
		}
		uid = object.UID
	case equality.Semantic.DeepEqual(before, status):
	default:
		err = s.patch(ctx, object, status)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.records[name] != r: // deleted while it was written, and lost then
	case exists && apierrors.IsNotFound(err) || !exists && r.ended == uid && uid != "":
		// It was deleted, and the informer has said so already or never will.
		lost, err = s.drop(r), nil
		for i := range status.References {
			lost = append(lost, status.References[i].Name)
		}
	case none && err == nil || !exists && err != nil:
		s.drop(r)
	case err == nil:
		s.unindex(r)
		if !exists {
			r.exists, r.spec = true, *spec
			r.spec.Layers = nil
		}
		r.uid, r.status = uid, *status
		s.index(r)
	}
	return lost, err
}

// patch replaces the status of an object that exists, no matter who changed it
// before.
func (s *store) patch(ctx context.Context, object *v1alpha1.ImageManifest, status *v1alpha1.ImageManifestStatus) error {
	short := bounded(status)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		// Name all fields: a merge patch keeps those that it does not name.
		"references": short.References, "conditions": short.Conditions,
		"failures": short.Failures, "retryTime": short.RetryTime,
	}})
	if err != nil {
		return err
	}
	return s.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
}

// bounded returns a status that fits the schema: if there are too many
// references, it keeps those that were confirmed last. Memory keeps all.
func bounded(status *v1alpha1.ImageManifestStatus) v1alpha1.ImageManifestStatus {
	short := *status
	if len(short.References) > v1alpha1.MaxReferences {
		short.References = slices.Clone(short.References)
		slices.SortStableFunc(short.References, func(a, b v1alpha1.ImageReference) int {
			return confirmedAt(&b).Compare(confirmedAt(&a))
		})
		short.References = short.References[:v1alpha1.MaxReferences]
	}
	return short
}

func confirmedAt(ref *v1alpha1.ImageReference) time.Time {
	if ref.LastConfirmed == nil {
		return time.Time{}
	}
	return ref.LastConfirmed.Time
}

func setReference(status *v1alpha1.ImageManifestStatus, ref v1alpha1.ImageReference) {
	for i := range status.References {
		if status.References[i].Name == ref.Name {
			status.References[i] = ref
			return
		}
	}
	status.References = append(status.References, ref)
}

func (s *store) condition(status *v1alpha1.ImageManifestStatus, kind, reason, message string) {
	value := metav1.ConditionFalse
	if reason == v1alpha1.ReasonResolved {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, LastTransitionTime: *s.now(),
	})
}

// now returns the time in the precision of objects, seconds.
func (s *store) now() *metav1.Time {
	return &metav1.Time{Time: s.clock.Now().Truncate(time.Second)}
}

// digestOf returns the digest of a reference, empty for a tag. If there is a
// digest, it alone determines the content.
func digestOf(reference string) string {
	_, digest, _ := strings.Cut(reference, "@")
	return digest
}

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

// store is what the ImageManifests of the cluster say, without their layers, and
// the only one that writes them. There is one writer (the leader), so memory
// decides and writes need no preconditions.
type store struct {
	client client.Client
	clock  clock.PassiveClock
	// lost is told references whose object has gone, to have them asked again.
	lost func(references []string)

	mu          sync.Mutex
	records     map[string]*record
	byReference map[string][]*record
	// byDigest has the records by the digest of their manifest and by those of the
	// indexes that led to them.
	byDigest map[string][]*record
	// gone has the objects that were deleted while they were being loaded; nil at
	// other times.
	gone map[types.UID]bool
}

// record is an ImageManifest. Its fields change under the mutex of the store.
type record struct {
	name string
	// writing is held while the object is written.
	writing sync.Mutex
	// exists: the object is there, under this UID.
	exists bool
	uid    types.UID
	// ended is the UID of an object that was deleted while it was being created.
	ended  types.UID
	spec   v1alpha1.ImageManifestSpec
	status v1alpha1.ImageManifestStatus
}

func newStore(c client.Client, clock clock.PassiveClock) *store {
	return &store{
		client: c, clock: clock, lost: func([]string) {},
		records: map[string]*record{}, byReference: map[string][]*record{}, byDigest: map[string][]*record{},
	}
}

// load takes over the objects that list returns.
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

// index and unindex are called around every change of a record.
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
	// digest that the registry has for it.
	digest string
	// index: the digest is one of an index, which was looked through for platforms.
	index     bool
	platforms []string
	// confirmed is when the registry last said so.
	confirmed time.Time
}

// covers tells whether nothing is to be learned for the platforms.
func (a *answer) covers(platforms []string) bool {
	return !a.index || !slices.ContainsFunc(platforms, func(p string) bool { return !slices.Contains(a.platforms, p) })
}

// lookup returns what is known about a reference, nil if it is not resolved.
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
			// Each object of an index says for which platforms it is.
			found.platforms = append(found.platforms, ref.Platforms...)
			if at.After(found.confirmed) {
				found.confirmed = at
			}
		}
	}
	return found
}

// failure returns how the last attempt at a reference went, as objects say it;
// nothing if it went well.
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

// limited returns the registries that asked to come back later, and until when
// they are left alone.
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

// references returns all that objects have, resolved or not.
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

// resolved notes that a reference consists of what the registry answered.
func (s *store) resolved(ctx context.Context, reference string, found *registry.Resolution, platforms []string) error {
	names := map[string]bool{}
	for i := range found.Manifests {
		spec := &found.Manifests[i]
		ref := v1alpha1.ImageReference{Name: reference, Digest: found.Digest, LastConfirmed: s.now()}
		if found.Index {
			ref.Platforms = covered(found.Manifests, i, platforms)
		}
		names[v1alpha1.ManifestName(spec.Digest)] = true
		err := s.write(ctx, v1alpha1.ManifestName(spec.Digest), spec, func(status *v1alpha1.ImageManifestStatus) {
			setReference(status, ref)
			message := fmt.Sprintf("%d layers, %d compressed bytes", len(spec.Layers), spec.Size)
			s.condition(status, v1alpha1.ConditionResolved, v1alpha1.ReasonResolved, message)
			s.confirm(status, reference)
		})
		if err != nil {
			return err
		}
	}
	// What it was before: other content, or a failure.
	for _, name := range s.holders(reference) {
		if !names[name] {
			if err := s.remove(ctx, name, reference); err != nil {
				return err
			}
		}
	}
	return nil
}

// covered returns the platforms that the object of a manifest of an index stands
// for: those it is for, and for the last one written those that have none. So if a
// write fails, or an object goes, what is missing is known to be missing.
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

// adopt notes that content which is known already has one more reference, by
// digest: no registry has to be asked.
func (s *store) adopt(ctx context.Context, reference string) error {
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
		if err := s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) { setReference(status, ref) }); err != nil {
			return err
		}
	}
	return nil
}

// confirmed notes that a tag still has a digest. Objects that say otherwise lose
// the tag.
func (s *store) confirmed(ctx context.Context, reference, digest string) error {
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

// notConfirmed notes that the registry did not tell whether a tag still points
// where it did. What is known stays.
func (s *store) notConfirmed(ctx context.Context, reference string, a attempt) error {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) {
		s.condition(status, v1alpha1.ConditionConfirmed, a.reason, a.message)
		setFailure(status, a)
	})
}

// notResolved notes why nothing is known about a reference.
func (s *store) notResolved(ctx context.Context, reference string, a attempt) error {
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
func (s *store) removeReference(ctx context.Context, reference string) error {
	return s.each(ctx, reference, func(status *v1alpha1.ImageManifestStatus) { dropReference(status, reference) })
}

// removeUnresolved forgets that a reference was not resolved.
func (s *store) removeUnresolved(ctx context.Context, reference string) error {
	return s.remove(ctx, v1alpha1.UnresolvedName(reference), reference)
}

// each changes all objects that have a reference.
func (s *store) each(ctx context.Context, reference string, change func(*v1alpha1.ImageManifestStatus)) error {
	for _, name := range s.holders(reference) {
		if err := s.write(ctx, name, nil, change); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) remove(ctx context.Context, name, reference string) error {
	return s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) { dropReference(status, reference) })
}

func dropReference(status *v1alpha1.ImageManifestStatus, reference string) {
	status.References = slices.DeleteFunc(status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
}

// deleted notes that an object has gone: deleted by somebody, if not by us.
func (s *store) deleted(name string, uid types.UID) {
	s.mu.Lock()
	if s.gone != nil {
		s.gone[uid] = true
	}
	var references []string
	switch r := s.records[name]; {
	case r == nil:
	case !r.exists:
		r.ended = uid
	case r.uid == uid:
		references = s.drop(r)
	}
	s.mu.Unlock()
	s.lost(references)
}

// drop forgets a record, which somebody may still be about to write, and returns
// its references.
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

// acquire returns the record of a name, held for writing.
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
		r.writing.Unlock() // it went while we waited
	}
}

// write changes the status of an object, in one request or none: it is made if
// it is not there, for which the spec is needed, and deleted if no reference is
// left. Without a spec, an object that is not there stays away; if it turns out
// to have gone, its references are lost.
func (s *store) write(ctx context.Context, name string, spec *v1alpha1.ImageManifestSpec, change func(*v1alpha1.ImageManifestStatus)) error {
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
	var err error
	switch {
	case !exists && (spec == nil || none): // nothing is there and nothing is to be
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
	var references []string
	switch {
	case s.records[name] != r: // deleted while it was written
	case exists && apierrors.IsNotFound(err) || !exists && r.ended == uid && uid != "":
		// It went, and the informer will not tell, or has told.
		references, err = s.drop(r), nil
		for i := range status.References {
			references = append(references, status.References[i].Name)
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
	s.mu.Unlock()
	s.lost(references)
	return err
}

// patch replaces the status of an object that is there, whoever changed it.
func (s *store) patch(ctx context.Context, object *v1alpha1.ImageManifest, status *v1alpha1.ImageManifestStatus) error {
	short := bounded(status)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		// All fields: a merge patch keeps what it does not name.
		"references": short.References, "conditions": short.Conditions,
		"failures": short.Failures, "retryTime": short.RetryTime,
	}})
	if err != nil {
		return err
	}
	return s.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
}

// bounded is a status as the schema allows it: of more references those that
// were confirmed last. Memory keeps all.
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

// now in the precision that objects have.
func (s *store) now() *metav1.Time {
	return &metav1.Time{Time: s.clock.Now().Truncate(time.Second)}
}

// digestOf returns the digest of a reference that has one, which is then all
// that counts; empty for a tag.
func digestOf(reference string) string {
	_, digest, _ := strings.Cut(reference, "@")
	return digest
}

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

	mu          sync.Mutex
	records     map[string]*record
	byReference map[string][]*record
	// byDigest has the records by the digest of their manifest and by those of the
	// indexes that led to them.
	byDigest map[string][]*record
}

// record is an ImageManifest. Its fields change under the mutex of the store.
type record struct {
	name string
	// writing is held while the object is written.
	writing sync.Mutex
	// exists: the object is there, under this UID.
	exists bool
	uid    types.UID
	spec   v1alpha1.ImageManifestSpec
	status v1alpha1.ImageManifestStatus
}

func newStore(c client.Client, clock clock.PassiveClock) *store {
	return &store{
		client: c, clock: clock,
		records: map[string]*record{}, byReference: map[string][]*record{}, byDigest: map[string][]*record{},
	}
}

// load takes over the objects that are there.
func (s *store) load(objects []v1alpha1.ImageManifest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range objects {
		object := &objects[i]
		r := &record{name: object.Name, exists: true, uid: object.UID, spec: object.Spec, status: object.Status}
		r.spec.Layers = nil
		s.records[r.name] = r
		s.index(r)
	}
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
			a := &answer{digest: ref.Digest, index: ref.Digest != r.spec.Digest, platforms: ref.Platforms}
			a.confirmed = confirmedAt(ref)
			if found == nil || a.confirmed.After(found.confirmed) {
				found = a
			}
		}
	}
	return found
}

// failure returns what the object of a reference that was not resolved says;
// nothing if there is none.
func (s *store) failure(reference string) attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[v1alpha1.UnresolvedName(reference)]
	if r == nil || !r.exists {
		return attempt{}
	}
	a := attempt{failures: int(r.status.Failures)}
	if c := meta.FindStatusCondition(r.status.Conditions, v1alpha1.ConditionResolved); c != nil {
		a.reason, a.message = c.Reason, c.Message
	}
	if r.status.RetryTime != nil {
		a.retry = r.status.RetryTime.Time
	}
	return a
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
	ref := v1alpha1.ImageReference{Name: reference, Digest: found.Digest, LastConfirmed: s.now()}
	if found.Index {
		ref.Platforms = platforms
	}
	names := map[string]bool{}
	for i := range found.Manifests {
		spec := &found.Manifests[i]
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
				ref.Platforms, ref.LastConfirmed = other.Platforms, other.LastConfirmed
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

// confirmed notes that a tag still points where it did.
func (s *store) confirmed(ctx context.Context, reference string) error {
	now := s.now()
	for _, name := range s.holders(reference) {
		err := s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) {
			for i := range status.References {
				if status.References[i].Name == reference {
					status.References[i].LastConfirmed = now
				}
			}
			s.confirm(status, reference)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *store) confirm(status *v1alpha1.ImageManifestStatus, reference string) {
	if digestOf(reference) != "" {
		return
	}
	s.condition(status, v1alpha1.ConditionConfirmed, v1alpha1.ReasonResolved, "the registry still has this for "+reference)
}

// notConfirmed notes that the registry did not tell whether a tag still points
// where it did. What is known stays.
func (s *store) notConfirmed(ctx context.Context, reference, reason, message string) error {
	for _, name := range s.holders(reference) {
		err := s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) {
			s.condition(status, v1alpha1.ConditionConfirmed, reason, message)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// notResolved notes why nothing is known about a reference.
func (s *store) notResolved(ctx context.Context, reference, reason, message string, failures int, retry time.Time) error {
	return s.write(ctx, v1alpha1.UnresolvedName(reference), &v1alpha1.ImageManifestSpec{}, func(status *v1alpha1.ImageManifestStatus) {
		setReference(status, v1alpha1.ImageReference{Name: reference})
		s.condition(status, v1alpha1.ConditionResolved, reason, message)
		status.Failures = int32(min(failures, 1<<30)) //nolint:gosec // bounded
		status.RetryTime = &metav1.Time{Time: retry}
	})
}

// removeReference forgets a reference, and objects that no other points to.
func (s *store) removeReference(ctx context.Context, reference string) error {
	for _, name := range s.holders(reference) {
		if err := s.remove(ctx, name, reference); err != nil {
			return err
		}
	}
	return nil
}

// removeUnresolved forgets that a reference was not resolved.
func (s *store) removeUnresolved(ctx context.Context, reference string) error {
	return s.remove(ctx, v1alpha1.UnresolvedName(reference), reference)
}

func (s *store) remove(ctx context.Context, name, reference string) error {
	return s.write(ctx, name, nil, func(status *v1alpha1.ImageManifestStatus) {
		status.References = slices.DeleteFunc(status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
	})
}

// deleted notes that somebody deleted an object and returns the references that
// are not known any more.
func (s *store) deleted(name string, uid types.UID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[name]
	if r == nil || !r.exists || r.uid != uid {
		return nil
	}
	var references []string
	for _, reference := range r.status.References {
		references = append(references, reference.Name)
	}
	s.drop(r)
	return references
}

// drop forgets a record; somebody may still be about to write it.
func (s *store) drop(r *record) {
	s.unindex(r)
	r.exists, r.uid, r.status = false, "", v1alpha1.ImageManifestStatus{}
	delete(s.records, r.name)
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
// left. Without a spec, an object that is not there stays away.
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
	var err error
	switch {
	case !exists && (spec == nil || len(status.References) == 0):
		// Nothing is there and nothing is to be.
	case len(status.References) == 0:
		err = client.IgnoreNotFound(s.client.Delete(ctx, object))
	case !exists:
		object.Spec, object.Status = *spec, bounded(status)
		if err = s.client.Create(ctx, object); apierrors.IsAlreadyExists(err) {
			err = s.patch(ctx, object, status)
		}
		uid = object.UID
	case equality.Semantic.DeepEqual(before, status):
	default:
		if err = s.patch(ctx, object, status); apierrors.IsNotFound(err) {
			// Deleted; the informer will tell, and the image is asked for again.
			err = fmt.Errorf("ImageManifest %s has gone while it was written: %w", name, err)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[name] != r { // deleted while it was written
		return err
	}
	if !exists && err != nil || len(status.References) == 0 && err == nil {
		s.drop(r)
		return err
	}
	if err != nil {
		return err
	}
	s.unindex(r)
	if !exists {
		r.exists = spec != nil
		r.spec = *spec
		r.spec.Layers = nil
	}
	r.uid, r.status = uid, *status
	s.index(r)
	return nil
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

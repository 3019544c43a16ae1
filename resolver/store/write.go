package store

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// point makes a reference point to a manifest, in the object that has it already or in
// the first that has room. spec may be nil if the manifest has an object. It returns the
// name of the object.
func (s *Store) point(ctx context.Context, digest string, spec *v1alpha1.ImageManifestSpec, ref v1alpha1.ImageReference, change func(*v1alpha1.ImageManifestStatus)) (name string, err error) {
	for {
		var exists bool
		name, exists = s.page(digest, ref.Name)
		if spec == nil && !exists {
			if spec, err = s.specOf(ctx, digest); err != nil || spec == nil {
				return name, err
			}
		}
		full := false
		err = s.write(ctx, name, spec, func(status *v1alpha1.ImageManifestStatus) {
			if full = !setReference(status, ref); !full {
				change(status)
			}
		})
		if err != nil || !full {
			return name, err
		}
	}
}

// page returns the name of the object of a manifest that has a reference, or else of the
// first one with room, and whether it exists: that of any page may have been deleted, when
// its last reference went.
func (s *Store) page(digest, reference string) (name string, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.byReference[reference] {
		if r.spec.Digest == digest {
			return r.name, true
		}
	}
	for page := 0; ; page++ {
		name := v1alpha1.PageName(digest, page)
		if r := s.byName[name]; r == nil || len(r.status.References) < v1alpha1.MaxReferences {
			return name, r != nil && r.exists
		}
	}
}

// specOf reads what a manifest states, from one of its objects; nil if there is none.
func (s *Store) specOf(ctx context.Context, digest string) (*v1alpha1.ImageManifestSpec, error) {
	s.mu.Lock()
	name := ""
	for _, r := range s.byDigest[digest] {
		if r.spec.Digest == digest && r.exists {
			name = r.name
		}
	}
	s.mu.Unlock()
	if name == "" {
		return nil, nil
	}
	object := &v1alpha1.ImageManifest{}
	if err := s.live.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
		return nil, client.IgnoreNotFound(err) // the informer will say that it is gone
	}
	return &object.Spec, nil
}

// acquire returns the manifest of a name, locked for writing.
func (s *Store) acquire(name string) *cachedManifest {
	for {
		s.mu.Lock()
		r := s.byName[name]
		if r == nil {
			r = &cachedManifest{name: name}
			s.byName[name] = r
		}
		s.mu.Unlock()
		r.writing.Lock()
		s.mu.Lock()
		current := s.byName[name] == r
		s.mu.Unlock()
		if current {
			return r
		}
		r.writing.Unlock() // it was dropped meanwhile
	}
}

// write changes the status of an object, with one request unless somebody else changed
// the object. An object that does not exist is created only if a spec is given. An object
// without references is deleted. If it turns out that somebody else deleted the object,
// its references are evicted.
func (s *Store) write(ctx context.Context, name string, spec *v1alpha1.ImageManifestSpec, change func(*v1alpha1.ImageManifestStatus)) (err error) {
	var evicted []string
	defer func() { s.evicted(evicted) }() // without a lock
	r := s.acquire(name)
	defer r.writing.Unlock()

	s.mu.Lock()
	exists := r.exists
	object := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: r.uid, ResourceVersion: r.version}}
	before := r.status.DeepCopy()
	s.mu.Unlock()
	status := before.DeepCopy()
	change(status)

	none := len(status.References) == 0
	switch {
	case !exists && (spec == nil || none): // it does not exist and is not needed
		none = true
	case none:
		err = client.IgnoreNotFound(s.delete(ctx, object))
	case !exists:
		err = s.create(ctx, object, spec, status)
	case equality.Semantic.DeepEqual(before, status):
	default:
		err = s.patch(ctx, object, status)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.byName[name] != r: // deleted while it was written, and evicted then
	case exists && apierrors.IsNotFound(err) || !exists && r.ended == object.UID && object.UID != "":
		// It was deleted, and the informer has shown it already or never will.
		evicted, err = s.dropLocked(r), nil
		for i := range status.References {
			evicted = append(evicted, status.References[i].Name)
		}
	case none && err == nil || !exists && err != nil:
		s.dropLocked(r)
	case err == nil:
		s.unindexLocked(r)
		if !exists {
			r.exists = true
			r.state(spec)
		}
		r.uid, r.version, r.status = object.UID, object.ResourceVersion, *status
		s.indexLocked(r)
	}
	return err
}

// create creates an object. One of that name that somebody else made is taken over if it
// states the same, and replaced if not.
func (s *Store) create(ctx context.Context, object *v1alpha1.ImageManifest, spec *v1alpha1.ImageManifestSpec, status *v1alpha1.ImageManifestStatus) error {
	wanted := v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: object.Name}, Spec: *spec, Status: *status}
	if errs := wanted.Validate(); len(errs) > 0 {
		return invalid(object.Name, errs)
	}
	for range maxConflicts {
		wanted.DeepCopyInto(object)
		err := s.client.Create(ctx, object)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		other := &v1alpha1.ImageManifest{}
		switch err := s.live.Get(ctx, client.ObjectKeyFromObject(object), other); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return err
		case equality.Semantic.DeepEqual(other.Spec, *spec):
			object.UID, object.ResourceVersion = other.UID, other.ResourceVersion
			return s.patch(ctx, object, status)
		}
		if err := client.IgnoreNotFound(s.delete(ctx, other)); err != nil {
			return err
		}
	}
	return apierrors.NewConflict(v1alpha1.ImageManifestsResource.GroupResource(), object.Name, errors.New("another client creates it again and again"))
}

// invalid is the error of an API server that refuses an object for what it states.
func invalid(name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ImageManifest").GroupKind(), name, errs)
}

// Refused reports whether an API server that works refused a write for what it states, or whose it is: the
// next one may succeed.
func Refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false // it was not reached
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// maxConflicts bounds how often a write is tried that somebody else's write came before.
const maxConflicts = 5

// patch replaces the status of an object that exists. What somebody else changed in it is
// put back. The error is NotFound if it was deleted, or another object has its name.
func (s *Store) patch(ctx context.Context, object *v1alpha1.ImageManifest, status *v1alpha1.ImageManifestStatus) error {
	changed := v1alpha1.ImageManifest{Status: *status}
	if errs := changed.ValidateStatus(); len(errs) > 0 {
		return invalid(object.Name, errs)
	}
	return s.retry(ctx, object, func() error {
		patch, err := json.Marshal(map[string]any{
			"metadata": preconditions(object),
			"status": map[string]any{
				// Name all fields: a merge patch keeps those that it does not name.
				"references": status.References, "conditions": status.Conditions,
				"failures": status.Failures, "retryTime": status.RetryTime,
			},
		})
		if err != nil {
			return err
		}
		return s.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	})
}

// delete deletes an object, and no other of its name.
func (s *Store) delete(ctx context.Context, object *v1alpha1.ImageManifest) error {
	return s.retry(ctx, object, func() error {
		conditions := client.Preconditions{}
		if object.UID != "" {
			conditions.UID = &object.UID
		}
		if object.ResourceVersion != "" {
			conditions.ResourceVersion = &object.ResourceVersion
		}
		return s.client.Delete(ctx, object, conditions)
	})
}

// preconditions has the metadata with which a patch fails for any other state or object.
func preconditions(object *v1alpha1.ImageManifest) map[string]any {
	metadata := map[string]any{}
	if object.UID != "" {
		metadata["uid"] = object.UID
	}
	if object.ResourceVersion != "" {
		metadata["resourceVersion"] = object.ResourceVersion
	}
	return metadata
}

// retry does a write again if somebody else changed the object, with the version it has.
func (s *Store) retry(ctx context.Context, object *v1alpha1.ImageManifest, write func() error) error {
	var err error
	for range maxConflicts {
		if err = write(); !apierrors.IsConflict(err) {
			return err
		}
		other := &v1alpha1.ImageManifest{}
		if err := s.live.Get(ctx, client.ObjectKey{Name: object.Name}, other); err != nil {
			return err
		}
		if object.UID != "" && other.UID != object.UID {
			return apierrors.NewNotFound(v1alpha1.ImageManifestsResource.GroupResource(), object.Name)
		}
		object.ResourceVersion = other.ResourceVersion
	}
	return err
}

// Drifted reports whether an object that a watch shows is not as the store left it, as far
// as its version shows. A write that is under way may be the reason.
func (s *Store) Drifted(name, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byName[name]
	return r == nil || r.version != version
}

// Repair puts an object back that somebody else has changed, and deletes one that somebody
// else has made: only the resolver writes them. It reports whether it had to.
func (s *Store) Repair(ctx context.Context, name, version string) (repaired bool, err error) {
	var evicted []string
	defer func() { s.evicted(evicted) }() // without a lock
	r := s.acquire(name)
	defer r.writing.Unlock()
	s.mu.Lock()
	exists, uid, known := r.exists, r.uid, r.version
	status := r.status.DeepCopy()
	s.mu.Unlock()
	if exists && known == version {
		return false, nil // it was a write of the store
	}
	object := &v1alpha1.ImageManifest{}
	err = s.live.Get(ctx, client.ObjectKey{Name: name}, object)
	switch {
	case err != nil:
	case !exists || object.UID != uid:
		repaired, err, exists = true, client.IgnoreNotFound(s.delete(ctx, object)), false
	case object.ResourceVersion == known: // seen in between
	case !equality.Semantic.DeepEqual(object.Status, *status):
		repaired, err = true, s.patch(ctx, object, status)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.byName[name] != r:
	case !exists || apierrors.IsNotFound(err):
		evicted, err = s.dropLocked(r), client.IgnoreNotFound(err)
	case err == nil:
		r.version = object.ResourceVersion
	}
	return repaired, err
}

// setReference adds or replaces a reference, and reports whether there was room for it.
func setReference(status *v1alpha1.ImageManifestStatus, ref v1alpha1.ImageReference) bool {
	at := slices.IndexFunc(status.References, func(r v1alpha1.ImageReference) bool { return r.Name == ref.Name })
	switch {
	case at >= 0:
		status.References[at] = ref
	case len(status.References) < v1alpha1.MaxReferences:
		status.References = append(status.References, ref)
	default:
		return false
	}
	return true
}

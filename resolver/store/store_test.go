package store

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store/storetest"
)

var amd64 = []string{"linux/amd64"}

var hash, plain, manifest = storetest.Digest, storetest.Plain, storetest.Manifest

func cachedManifestsOf(objects ...v1alpha1.ImageManifest) (records []*cachedManifest) {
	for i := range objects {
		records = append(records, cachedManifestOf(&objects[i]))
	}
	return records
}

// storeTest is a store and its API server.
type storeTest struct {
	*Store
	*storetest.Server
	t *testing.T
	// gone are the references that were evicted.
	gone []string
}

func newStoreTest(t *testing.T) *storeTest {
	server := storetest.New(t)
	s := &storeTest{Server: server, t: t}
	s.Store = New(server, server, server.Clock, func(references []string) { s.gone = append(s.gone, references...) })
	return s
}

func (s *storeTest) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *storeTest) expect(want map[string]string) {
	s.t.Helper()
	if got := fmt.Sprint(s.Objects()); got != fmt.Sprint(want) {
		s.t.Errorf("objects %v, want %v", got, want)
	}
	resolved, unresolved := s.Count()
	if resolved+unresolved != len(want) {
		s.t.Errorf("%d in memory, want %d", resolved+unresolved, len(want))
	}
	// The next process reads what this one knows.
	next := New(s, s, s.Clock, nil)
	s.must(next.Load(s.t.Context()))
	for reference := range s.byReference {
		a, b := s.Lookup(reference), next.Lookup(reference)
		if (a == nil) != (b == nil) || a != nil && (a.Digest != b.Digest || !a.Confirmed.Equal(b.Confirmed) || !slices.Equal(a.platforms, b.platforms)) {
			s.t.Errorf("%s: %+v in memory, %+v from objects", reference, a, b)
		}
	}
}

func TestStoreResolved(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const one, two = "reg/x:1", "reg/x:2"
	a, b := v1alpha1.ManifestName(hash("a")), v1alpha1.ManifestName(hash("b"))

	s.must(s.Resolved(ctx, one, plain(hash("a")), amd64))
	s.must(s.Resolved(ctx, two, plain(hash("a")), amd64))
	s.expect(map[string]string{a: one + " " + two})
	if s.Writes != 2 {
		t.Errorf("%d writes for two answers", s.Writes)
	}
	if got := s.Lookup(one); got == nil || got.Digest != hash("a") || got.index || !got.Confirmed.Equal(s.Clock.Now()) {
		t.Errorf("answer %+v", got)
	}
	if got := s.Lookup("other/y@" + hash("a")); got == nil {
		t.Error("the digest is known, but not in another repository")
	}

	// A tag moves, and it is the last reference: nothing points to the old object
	// any longer.
	s.must(s.Resolved(ctx, two, plain(hash("b")), amd64))
	s.expect(map[string]string{a: one, b: two})
	s.must(s.Resolved(ctx, one, plain(hash("b")), amd64))
	s.expect(map[string]string{b: one + " " + two})
	if s.Lookup("reg/x@"+hash("a")) != nil {
		t.Error("what was removed is known")
	}

	// Confirmed later: one write for each object.
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.Writes = 0
	s.must(s.Confirmed(ctx, one, hash("b")))
	if got := s.Lookup(one); !got.Confirmed.Equal(s.Clock.Now()) || s.Writes != 1 {
		t.Errorf("confirmed %v with %d writes", got.Confirmed, s.Writes)
	}
	if got := s.Lookup(two); got.Confirmed.Equal(s.Clock.Now()) {
		t.Error("another tag is confirmed with it")
	}
	s.must(s.RemoveReference(ctx, one))
	s.must(s.RemoveReference(ctx, two))
	s.expect(map[string]string{})
}

func TestStoreIndex(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const tag = "reg/x:1"
	platforms := []string{"linux/amd64", "linux/arm64"}
	found := &registry.Resolution{Digest: hash("f"), Index: true, Manifests: []v1alpha1.ImageManifestSpec{
		manifest(hash("a"), "linux/amd64"), manifest(hash("b"), "linux/arm64"),
	}}
	s.must(s.Resolved(ctx, tag, found, platforms))
	a, b := v1alpha1.ManifestName(hash("a")), v1alpha1.ManifestName(hash("b"))
	s.expect(map[string]string{a: tag, b: tag})
	for _, reference := range []string{tag, "reg/x@" + hash("f")} {
		got := s.Lookup(reference)
		if got == nil || !got.index || !got.Covers(platforms) || got.Covers([]string{"linux/s390x"}) {
			t.Errorf("%s: %+v", reference, got)
		}
	}
	if got := s.Lookup("reg/x@" + hash("b")); got == nil || !got.Covers([]string{"linux/s390x"}) {
		t.Errorf("a manifest has no platforms to look through: %+v", got)
	}
	// By digest: one more reference, without a request.
	s.must(s.Adopt(ctx, "reg/x@"+hash("f")))
	s.must(s.Adopt(ctx, "reg/x@"+hash("b")))
	s.expect(map[string]string{a: tag + " reg/x@" + hash("f"), b: tag + " reg/x@" + hash("b") + " reg/x@" + hash("f")})
	// The tag moves to another digest. The pinned reference stays, with its
	// platforms.
	s.must(s.Resolved(ctx, tag, plain(hash("c")), platforms))
	if got := s.Lookup("reg/x@" + hash("f")); got == nil || !got.index || !got.Covers(platforms) {
		t.Errorf("pinned: %+v", got)
	}
}

func TestStoreFailures(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const tag = "reg/x:1"
	retry := s.Clock.Now().Add(time.Minute)
	refused := Failure{Failures: 3, Retry: retry, Reason: v1alpha1.ReasonUnauthorized, Message: "who are you?"}
	s.must(s.NotResolved(ctx, tag, refused))
	unresolved := v1alpha1.UnresolvedName(tag)
	s.expect(map[string]string{unresolved: tag})
	if got := s.Failure(tag); got.Failures != 3 || !got.Retry.Equal(retry) || got.Reason != v1alpha1.ReasonUnauthorized || got.Message != "who are you?" {
		t.Errorf("failure %+v", got)
	}
	if s.Lookup(tag) != nil {
		t.Error("a failure is no answer")
	}
	// The same failure again causes no write.
	s.Writes = 0
	s.must(s.NotResolved(ctx, tag, refused))
	if s.Writes != 0 {
		t.Errorf("%d writes of the same", s.Writes)
	}
	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	a := v1alpha1.ManifestName(hash("a"))
	s.expect(map[string]string{a: tag})

	// A later failure removes nothing.
	s.must(s.NotConfirmed(ctx, tag, Failure{Failures: 1, Retry: retry, Reason: v1alpha1.ReasonUnavailable, Message: "down"}))
	s.expect(map[string]string{a: tag})
	var object v1alpha1.ImageManifest
	s.must(s.Get(ctx, client.ObjectKey{Name: a}, &object))
	if c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionConfirmed); c == nil || c.Reason != v1alpha1.ReasonUnavailable || c.Status != metav1.ConditionFalse {
		t.Errorf("condition %+v", c)
	}
	if !meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionResolved) || len(object.Spec.Layers) != 1 {
		t.Errorf("the content has gone: %+v", object)
	}
	s.must(s.Confirmed(ctx, tag, hash("a")))
	s.must(s.Get(ctx, client.ObjectKey{Name: a}, &object))
	if !meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionConfirmed) {
		t.Errorf("not confirmed: %+v", object.Status.Conditions)
	}
}

func TestStoreDeleted(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const tag = "reg/x:1"
	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	name := v1alpha1.ManifestName(hash("a"))
	uid := s.byName[name].uid
	s.Deleted(name, "of an object before it")
	if s.Lookup(tag) == nil || len(s.gone) != 0 {
		t.Errorf("evicted %q with an object that went long ago", s.gone)
	}
	s.must(s.Delete(ctx, &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	s.Deleted(name, uid)
	if !slices.Equal(s.gone, []string{tag}) {
		t.Errorf("references %v are to be asked again", s.gone)
	}
	if s.Lookup(tag) != nil || len(s.byReference) != 0 {
		t.Error("still known")
	}
	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	s.expect(map[string]string{name: tag})

	// Before the informer reports the deletion: no object without layers is
	// created, and the reference is asked again too.
	s.gone = nil
	s.must(s.Delete(ctx, &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.must(s.Confirmed(ctx, tag, hash("a")))
	if s.Lookup(tag) != nil || !slices.Contains(s.gone, tag) {
		t.Errorf("evicted %q", s.gone)
	}
	s.expect(map[string]string{})
}

// An object that is deleted between listing it and reading the list is not known.
func TestStoreDeletedWhileLoaded(t *testing.T) {
	s := newStoreTest(t)
	const tag = "reg/x:1"
	object := v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(hash("a")), UID: "u"}, Spec: manifest(hash("a"), ""),
		Status: v1alpha1.ImageManifestStatus{References: []v1alpha1.ImageReference{{Name: tag, Digest: hash("a"), LastConfirmed: s.now()}}},
	}
	s.must(s.load(func() ([]*cachedManifest, error) {
		s.Deleted(object.Name, object.UID)
		return cachedManifestsOf(object), nil
	}))
	if s.Lookup(tag) != nil || len(s.gone) != 0 {
		t.Errorf("known: %+v, evicted %q", s.Lookup(tag), s.gone)
	}
	// Later deletions are not collected: nobody would ever look at them.
	s.Deleted("another", "v")
	if len(s.Store.gone) != 0 {
		t.Errorf("still collected: %v", s.Store.gone)
	}
}

// One object of an index is gone, and the other cannot be written: the evicted
// references are asked for again.
func TestStoreLosesAndFails(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const tag, other = "reg/x:1", "reg/y:1"
	s.must(s.Resolved(ctx, other, plain(hash("a")), amd64))
	s.must(s.Resolved(ctx, tag, twoPlatforms(), both)) // of amd64 it is the same object
	gone := s.holders(tag)[0]
	s.must(s.Delete(ctx, &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: gone}}))
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if o.GetName() == gone {
				return c.Patch(ctx, o, p, opts...)
			}
			return errors.New("etcd: leader changed")
		},
	})
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	err := s.Confirmed(ctx, tag, hash("f"))
	if err == nil || !slices.Contains(s.gone, tag) || !slices.Contains(s.gone, other) {
		t.Errorf("evicted %q, error %v", s.gone, err)
	}
}

func TestStoreWriteFails(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const tag = "reg/x:1"
	s.Fails = errors.New("no API server")
	if err := s.Resolved(ctx, tag, plain(hash("a")), amd64); !errors.Is(err, s.Fails) {
		t.Errorf("error %v", err)
	}
	if s.Lookup(tag) != nil || len(s.byName) != 0 {
		t.Error("known, although nothing was written")
	}
	s.Fails = nil
	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	before := *s.Lookup(tag)
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.Fails = errors.New("no API server")
	if err := s.Confirmed(ctx, tag, hash("a")); !errors.Is(err, s.Fails) {
		t.Errorf("error %v", err)
	}
	if got := s.Lookup(tag); !got.Confirmed.Equal(before.Confirmed) {
		t.Error("confirmed, although nothing was written")
	}
}

// An object that somebody else created is taken over.
func TestStoreAlreadyExists(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const tag = "reg/x:1"
	name := v1alpha1.ManifestName(hash("a"))
	object := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "theirs"}, Spec: manifest(hash("a"), "")}
	s.must(s.Create(ctx, object))
	patched := ""
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			data, err := patch.Data(o)
			patched = string(data)
			return errors.Join(err, c.Patch(ctx, o, patch, opts...))
		},
	})
	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	s.expect(map[string]string{name: tag})
	if want := `"uid":"theirs"`; !strings.Contains(patched, want) {
		t.Errorf("the patch is %s, want %s in it: another object may have come meanwhile", patched, want)
	}
}

// However many references point to a manifest, objects have them all, with its layers.
func TestStoreManyReferences(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	const references = 500
	for i := range references {
		s.must(s.Resolved(ctx, fmt.Sprintf("reg/x:%d", i), plain(hash("a")), amd64))
	}
	var list v1alpha1.ImageManifestList
	s.must(s.List(ctx, &list))
	if want := (references + v1alpha1.MaxReferences - 1) / v1alpha1.MaxReferences; len(list.Items) != want {
		t.Errorf("%d objects, want %d", len(list.Items), want)
	}
	found := map[string]bool{}
	for _, object := range list.Items {
		if n := len(object.Status.References); n > v1alpha1.MaxReferences || len(object.Spec.Layers) != 1 || !v1alpha1.IsPageName(object.Name, hash("a")) {
			t.Errorf("%s has %d references and %d layers", object.Name, n, len(object.Spec.Layers))
		}
		for _, reference := range object.Status.References {
			found[reference.Name] = true
		}
	}
	if len(found) != references {
		t.Errorf("%d references in objects, want %d", len(found), references)
	}
	// Others fill the places that become free, and each change is one write.
	s.must(s.RemoveReference(ctx, "reg/x:3"))
	s.must(s.Adopt(ctx, "reg/other@"+hash("a")))
	s.must(s.List(ctx, &list))
	if s.Lookup("reg/other:1") != nil || !slices.Contains(s.holders("reg/other@"+hash("a")), v1alpha1.ManifestName(hash("a"))) {
		t.Errorf("held by %q", s.holders("reg/other@"+hash("a")))
	}
	s.Writes = 0
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.must(s.Confirmed(ctx, "reg/x:499", hash("a")))
	if s.Writes != 1 {
		t.Errorf("%d writes to confirm one tag", s.Writes)
	}
	// A page is made from the layers of the others, which memory does not have.
	for i := range references {
		s.must(s.Adopt(ctx, fmt.Sprintf("reg%d/x@%s", i, hash("a"))))
	}
	s.must(s.List(ctx, &list))
	for _, object := range list.Items {
		if len(object.Spec.Layers) != 1 {
			t.Errorf("%s has %d layers", object.Name, len(object.Spec.Layers))
		}
	}
}

// What a tag was before is removed, or the caller knows that it has to be tried again.
func TestStoreOldContentStays(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	s.must(s.Resolved(ctx, "reg/x:1", plain(hash("a")), amd64))
	s.FailsDelete = errors.New("no API server")
	if err := s.Resolved(ctx, "reg/x:1", plain(hash("b")), amd64); !errors.Is(err, s.FailsDelete) {
		t.Errorf("error %v: the old object is there", err)
	}
	s.FailsDelete = nil
	s.must(s.Resolved(ctx, "reg/x:1", plain(hash("b")), amd64))
	s.expect(map[string]string{v1alpha1.ManifestName(hash("b")): "reg/x:1"})
}

// The layers of a manifest with several objects count once.
func TestStoreLayersOfPages(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	for i := range 2*v1alpha1.MaxReferences + 1 {
		s.must(s.Resolved(ctx, fmt.Sprintf("reg/x:%d", i), plain(hash("a")), amd64))
	}
	if n := s.LayersOf(hash("a")); n != 1 {
		t.Errorf("%d layers, want 1", n)
	}
}

// The references of the first page have all gone, and with them its object: the next
// reference makes it again, with the layers of another page.
func TestStoreFirstPageIsGone(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	for i := range v1alpha1.MaxReferences + 1 {
		s.must(s.Resolved(ctx, fmt.Sprintf("reg/x:%d", i), plain(hash("a")), amd64))
	}
	for i := range v1alpha1.MaxReferences {
		s.must(s.RemoveReference(ctx, fmt.Sprintf("reg/x:%d", i)))
	}
	first, second := v1alpha1.PageName(hash("a"), 0), v1alpha1.PageName(hash("a"), 1)
	s.expect(map[string]string{second: "reg/x:64"})
	pinned := "reg/x@" + hash("a")
	s.must(s.Adopt(ctx, pinned))
	s.expect(map[string]string{first: pinned, second: "reg/x:64"})
	var object v1alpha1.ImageManifest
	s.must(s.Get(ctx, client.ObjectKey{Name: first}, &object))
	if len(object.Spec.Layers) != 1 {
		t.Errorf("%d layers", len(object.Spec.Layers))
	}
}

// Two objects disagree on a tag, as after a write that failed half-way: what the
// registry confirmed last counts, whichever object is read first.
func TestStoreNewerAnswerCounts(t *testing.T) {
	const tag = "reg/x:1"
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	object := func(name, digest, index string, hours int) v1alpha1.ImageManifest {
		at := metav1.NewTime(begin.Add(time.Duration(hours) * time.Hour))
		return v1alpha1.ImageManifest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: manifest(digest, ""),
			Status: v1alpha1.ImageManifestStatus{References: []v1alpha1.ImageReference{{Name: tag, Digest: index, LastConfirmed: &at}}},
		}
	}
	older := object("older", hash("a"), hash("a"), 1)
	newer, same := object("newer", hash("b"), hash("f"), 5), object("same", hash("c"), hash("f"), 3)
	for _, order := range [][]v1alpha1.ImageManifest{{older, newer, same}, {newer, same, older}, {same, older, newer}, {same, newer, older}} {
		s := newStoreTest(t)
		s.must(s.load(func() ([]*cachedManifest, error) { return cachedManifestsOf(order...), nil }))
		found := s.Lookup(tag)
		if found == nil || found.Digest != hash("f") || !found.Confirmed.Equal(begin.Add(5*time.Hour)) {
			t.Errorf("order %s %s %s: %+v", order[0].Name, order[1].Name, order[2].Name, found)
		}
	}
}

// Somebody edits an object, empties it, or replaces it by one of their own: the store
// puts it right, and loses nothing that it knows.
func TestStoreRepairs(t *testing.T) {
	const tag = "reg/x:1"
	name := v1alpha1.ManifestName(hash("a"))
	forged := manifest(hash("a"), "")
	forged.Layers[0].Size = 1 << 40
	for what, c := range map[string]struct {
		change  func(*storeTest, *v1alpha1.ImageManifest) error
		evicted []string
	}{
		"edited": {func(s *storeTest, m *v1alpha1.ImageManifest) error {
			m.Status.References[0].Digest = hash("b")
			return s.Update(t.Context(), m)
		}, nil},
		"emptied": {func(s *storeTest, m *v1alpha1.ImageManifest) error {
			m.Status = v1alpha1.ImageManifestStatus{}
			return s.Update(t.Context(), m)
		}, nil},
		"replaced": {func(s *storeTest, m *v1alpha1.ImageManifest) error {
			s.must(s.Delete(t.Context(), m))
			return s.Create(t.Context(), &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "another"}, Spec: forged})
		}, []string{tag}},
	} {
		t.Run(what, func(t *testing.T) {
			s, ctx := newStoreTest(t), t.Context()
			s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
			var object v1alpha1.ImageManifest
			s.must(s.Get(ctx, client.ObjectKey{Name: name}, &object))
			if s.Drifted(name, object.ResourceVersion) {
				t.Error("what the store wrote counts as changed")
			}
			s.must(c.change(s, &object))
			changed := object.DeepCopy()
			s.must(s.Get(ctx, client.ObjectKey{Name: name}, changed))
			if !s.Drifted(name, changed.ResourceVersion) && what != "replaced" {
				t.Fatal("not noticed")
			}
			repaired, err := s.Repair(ctx, name, "of the event")
			s.must(err)
			if !repaired || !slices.Equal(s.gone, c.evicted) {
				t.Errorf("repaired %t, evicted %q, want %q", repaired, s.gone, c.evicted)
			}
			if s.gone != nil {
				s.expect(map[string]string{})
				return
			}
			s.expect(map[string]string{name: tag})
			s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
			s.must(s.Confirmed(ctx, tag, hash("a")))
			s.expect(map[string]string{name: tag})
		})
	}
	// One that nobody but the resolver should have made.
	s := newStoreTest(t)
	s.must(s.Create(t.Context(), &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: forged}))
	if !s.Drifted(name, "1") {
		t.Error("not noticed")
	}
	if repaired, err := s.Repair(t.Context(), name, "1"); !repaired || s.gone != nil || err != nil {
		t.Errorf("repaired %t, evicted %q, error %v", repaired, s.gone, err)
	}
	s.expect(map[string]string{})
}

// A write that meets somebody else's: theirs is put right, and neither is another object
// of the same name deleted nor taken for the old one.
func TestStoreConflicts(t *testing.T) {
	const tag = "reg/x:1"
	s, ctx := newStoreTest(t), t.Context()
	name := v1alpha1.ManifestName(hash("a"))
	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	var object v1alpha1.ImageManifest
	s.must(s.Get(ctx, client.ObjectKey{Name: name}, &object))
	object.Status.References = append(object.Status.References, v1alpha1.ImageReference{Name: "forged/x:1", Digest: hash("a")})
	s.must(s.Update(ctx, &object))
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	s.must(s.Confirmed(ctx, tag, hash("a")))
	s.expect(map[string]string{name: tag})

	s.must(s.Get(ctx, client.ObjectKey{Name: name}, &object))
	object.Labels = map[string]string{"new": "version"}
	s.must(s.Update(ctx, &object))
	s.must(s.RemoveReference(ctx, tag))
	s.expect(map[string]string{})

	s.must(s.Resolved(ctx, tag, plain(hash("a")), amd64))
	s.byName[name].uid = "old" // the fake client gives none
	s.must(s.Delete(ctx, &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	another := &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "another"}, Spec: manifest(hash("a"), "")}
	s.must(s.Create(ctx, another))
	another.Labels = map[string]string{"not": "the store's version"}
	s.must(s.Update(ctx, another))
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	if err := s.Confirmed(ctx, tag, hash("a")); err != nil || !slices.Contains(s.gone, tag) || s.Lookup(tag) != nil {
		t.Errorf("evicted %q, error %v: the object has gone", s.gone, err)
	}
	if got := s.Objects(); len(got) != 1 || got[name] != "" {
		t.Errorf("the other object is written: %v", got)
	}
}

// Somebody who writes the objects again and again does not keep the store from anything
// else: it gives up after five times.
func TestStoreGivesUp(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	tries := 0
	conflict := apierrors.NewConflict(v1alpha1.ImageManifestsResource.GroupResource(), "m", errors.New("changed"))
	exists := apierrors.NewAlreadyExists(v1alpha1.ImageManifestsResource.GroupResource(), "m")
	s.must(s.Resolved(ctx, "reg/x:1", plain(hash("a")), amd64))
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			tries++
			return conflict
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			tries++
			s.must(c.Create(ctx, &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: o.GetName()}, Spec: manifest(hash("c"), "")}))
			return exists
		},
	})
	s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
	if err := s.Confirmed(ctx, "reg/x:1", hash("a")); !apierrors.IsConflict(err) || tries != 5 {
		t.Errorf("changed again and again: error %v after %d times", err, tries)
	}
	tries = 0
	if err := s.Resolved(ctx, "reg/x:2", plain(hash("b")), amd64); err == nil || !strings.Contains(err.Error(), "again and again") || tries != 5 {
		t.Errorf("made again and again: error %v after %d times", err, tries)
	}
	if s.Lookup("reg/x:2") != nil {
		t.Error("what was not written is known")
	}
}

// All objects of an index are confirmed at the same time, or a reader that compares them
// takes one for older.
func TestStoreConfirmsAnIndexAtOnce(t *testing.T) {
	s, ctx := newStoreTest(t), t.Context()
	ticks := 0
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			ticks++
			s.Clock.SetTime(s.Clock.Now().Add(time.Second)) // as the API server takes
			return c.Create(ctx, o, opts...)
		},
	})
	s.must(s.Resolved(ctx, "reg/x:1", twoPlatforms(), both))
	var list v1alpha1.ImageManifestList
	s.must(s.List(ctx, &list))
	if a, b := list.Items[0].Status.References[0], list.Items[1].Status.References[0]; ticks != 2 || !a.LastConfirmed.Equal(b.LastConfirmed) {
		t.Errorf("confirmed at %s and %s", a.LastConfirmed, b.LastConfirmed)
	}
}

// What is deleted is the object in the state that was looked at: one that somebody has changed
// meanwhile is looked at again first.
func TestDeleteIsOfOneState(t *testing.T) {
	s := newStoreTest(t)
	s.must(s.Resolved(t.Context(), "reg/x:1", plain(hash("a")), amd64))
	object := &v1alpha1.ImageManifest{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ManifestName(hash("a"))}, object))
	var asked []client.DeleteOption
	s.WithWatch = interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			asked = options
			return c.Delete(ctx, o, options...)
		},
	})
	s.must(s.delete(t.Context(), object.DeepCopy()))
	options := (&client.DeleteOptions{}).ApplyOptions(asked)
	if p := options.Preconditions; p == nil || p.ResourceVersion == nil || *p.ResourceVersion != object.ResourceVersion {
		t.Errorf("deleted under the conditions %+v, want the resource version %s", p, object.ResourceVersion)
	}
}

// A reference by digest is adopted when all that is known of its content has it.
func TestStoreAdopted(t *testing.T) {
	s, digest := newStoreTest(t), "reg/x@"+hash("f")
	amd, all := twoPlatforms(), twoPlatforms()
	amd.Manifests = amd.Manifests[:1]
	for i, step := range []struct {
		do   func() error
		want bool
	}{
		{func() error { return nil }, false},
		{func() error { return s.Resolved(t.Context(), "reg/x:1", amd, amd64) }, false},
		{func() error { return s.Adopt(t.Context(), digest) }, true},
		{func() error { return s.Resolved(t.Context(), "reg/x:1", all, both) }, false}, // not for arm64
		{func() error { return s.Adopt(t.Context(), digest) }, true},
		{func() error {
			return s.NotResolved(t.Context(), digest, Failure{Reason: v1alpha1.ReasonNotFound})
		}, false},
		{func() error { return s.RemoveUnresolved(t.Context(), digest) }, true},
		{func() error { return s.RemoveReference(t.Context(), "reg/x:1") }, true},
	} {
		if s.must(step.do()); s.Adopted(digest) != step.want {
			t.Errorf("step %d: adopted: %t", i, !step.want)
		}
	}
}

// What credentials or the policy refused is asked for at once after a restart, which may have
// changed them; what a registry does not have is not.
func TestStoreRetriesAfterRestart(t *testing.T) {
	for reason, atOnce := range map[string]bool{v1alpha1.ReasonUnauthorized: true, v1alpha1.ReasonDenied: true, v1alpha1.ReasonNotFound: false, v1alpha1.ReasonUnavailable: false} {
		s := newStoreTest(t)
		s.must(s.NotResolved(t.Context(), "reg/x:1", Failure{Failures: 3, Reason: reason, Message: "no", Retry: s.Clock.Now().Add(time.Hour)}))
		next := New(s, s, s.Clock, nil)
		s.must(next.Load(t.Context()))
		if got := next.Failure("reg/x:1"); got.Reason != reason || got.Failures != 3 || got.Retry.IsZero() != atOnce {
			t.Errorf("%s: %+v", reason, got)
		}
	}
}

// A registry that fails for what is known is remembered, with how often, until it answers.
func TestStoreFailuresOfKnown(t *testing.T) {
	const tag = "reg/x:1"
	s := newStoreTest(t)
	s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
	failed := Failure{Failures: 3, Reason: v1alpha1.ReasonUnavailable, Message: "down", Retry: s.Clock.Now().Add(time.Hour)}
	s.must(s.NotConfirmed(t.Context(), tag, failed))
	if got := s.Failure(tag); got.Failures != 3 || got.Reason != failed.Reason || !got.Retry.Equal(failed.Retry) {
		t.Errorf("%+v, want %+v", got, failed)
	}
	s.must(s.Confirmed(t.Context(), tag, hash("a")))
	status := &s.byName[v1alpha1.ManifestName(hash("a"))].status
	if s.Failure(tag) != (Failure{}) || status.Failures != 0 || status.RetryTime != nil {
		t.Errorf("the registry answered: %+v", status)
	}
}

// A digest that is known under other names was confirmed with the last of them, and is private
// if one of them is.
func TestStoreAdopts(t *testing.T) {
	for _, test := range []struct{ first, second bool }{{false, false}, {true, false}, {false, true}} {
		s := newStoreTest(t)
		write := func(private bool) func(context.Context, string, *registry.Resolution, []string) error {
			if private {
				return s.ResolvedPrivately
			}
			return s.Resolved
		}
		s.must(write(test.first)(t.Context(), "reg/x:1", plain(hash("a")), amd64))
		s.Clock.SetTime(s.Clock.Now().Add(time.Hour))
		s.must(write(test.second)(t.Context(), "reg/x:2", plain(hash("a")), amd64))
		pinned := "reg/x@" + hash("a")
		s.must(s.Adopt(t.Context(), pinned))
		found := s.byName[v1alpha1.ManifestName(hash("a"))]
		at := slices.IndexFunc(found.status.References, func(r v1alpha1.ImageReference) bool { return r.Name == pinned })
		if at < 0 {
			t.Fatalf("%+v", found.status.References)
		}
		if ref := found.status.References[at]; !confirmedAt(&ref).Equal(s.Clock.Now()) || ref.Private != (test.first || test.second) {
			t.Errorf("%+v: %+v", test, ref)
		}
		if len(found.spec.Layers) != 0 || found.layers != len(plain(hash("a")).Manifests[0].Layers) {
			t.Errorf("%d layers are in memory, %d are counted", len(found.spec.Layers), found.layers)
		}
	}
}

func TestLatest(t *testing.T) {
	early, late := &metav1.Time{Time: time.Unix(1, 0)}, &metav1.Time{Time: time.Unix(2, 0)}
	for _, test := range []struct{ a, b, want *metav1.Time }{
		{nil, nil, nil}, {early, nil, early}, {nil, early, early}, {early, late, late}, {late, early, late},
	} {
		if got := latest(test.a, test.b); got != test.want {
			t.Errorf("latest of %v and %v: %v", test.a, test.b, got)
		}
	}
}

// One of the names of an object is unused, not the others.
func TestStoreUnusedName(t *testing.T) {
	s := newStoreTest(t)
	for _, tag := range []string{"reg/x:1", "reg/x:2", "reg/x:3"} {
		s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
	}
	since := s.Clock.Now().Add(-time.Hour)
	s.must(s.NoteUnused(t.Context(), "reg/x:2", since))
	for _, h := range s.All() {
		if want := h.Reference == "reg/x:2"; h.Unused.Equal(since) != want || h.Unused.IsZero() == want {
			t.Errorf("%s: unused since %v", h.Reference, h.Unused)
		}
	}
}

// An object takes as many references as it may have, and a reference that it has again.
func TestSetReference(t *testing.T) {
	status := &v1alpha1.ImageManifestStatus{}
	for i := range v1alpha1.MaxReferences {
		if !setReference(status, v1alpha1.ImageReference{Name: fmt.Sprint(i)}) {
			t.Fatalf("no room for number %d", i+1)
		}
	}
	if setReference(status, v1alpha1.ImageReference{Name: "another"}) {
		t.Errorf("room for %d", len(status.References))
	}
	if !setReference(status, v1alpha1.ImageReference{Name: "7", Digest: hash("a")}) || status.References[7].Digest != hash("a") || len(status.References) != v1alpha1.MaxReferences {
		t.Errorf("number 7 is %+v", status.References[7])
	}
}

var both = []string{"linux/amd64", "linux/arm64"}

func twoPlatforms() *registry.Resolution {
	return &registry.Resolution{Digest: hash("f"), Index: true, Manifests: []v1alpha1.ImageManifestSpec{
		manifest(hash("a"), "linux/amd64"), manifest(hash("b"), "linux/arm64"),
	}}
}

// waitForWriter waits until a goroutine waits for a record that another one writes.
func waitForWriter(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); goruntime.Gosched() {
		for stack := range strings.SplitSeq(string(stacks[:goruntime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "sync.Mutex.Lock") && strings.Contains(stack, "(*Store).acquire") {
				return
			}
		}
	}
	t.Fatal("nobody waits")
}

// An object is deleted while its next write waits for the one before: what is
// written then belongs to a new object, which the store must know.
func TestDeletedWhileAWriteWaits(t *testing.T) {
	const tag = "reg/x:1"
	s := newStoreTest(t)
	s.must(s.Resolved(t.Context(), tag, plain(hash("a")), amd64))
	name := v1alpha1.ManifestName(hash("a"))
	record := s.byName[name]
	record.writing.Lock() // somebody writes it
	ended := make(chan error, 1)
	go func() {
		ended <- s.Resolved(t.Context(), tag, plain(hash("a")), amd64)
	}()
	waitForWriter(t)
	s.must(s.Delete(t.Context(), &v1alpha1.ImageManifest{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	s.Deleted(name, record.uid)
	record.writing.Unlock()
	s.must(<-ended)
	if found := s.Lookup(tag); found == nil || found.Digest != hash("a") {
		t.Errorf("the store knows %+v of what it has just written", found)
	}
	if n := len(s.Objects()); n != 1 {
		t.Errorf("%d objects", n)
	}
}

// A pinned image could not be looked through for a new platform at first; later
// it was.
func TestConfirmedOfDigest(t *testing.T) {
	pinned := "reg/x@" + hash("f")
	s := newStoreTest(t)
	s.must(s.Resolved(t.Context(), pinned, &registry.Resolution{Digest: hash("f"), Index: true, Manifests: twoPlatforms().Manifests[:1]}, amd64))
	s.must(s.NotConfirmed(t.Context(), pinned, Failure{Reason: v1alpha1.ReasonUnavailable, Message: "down"}))
	s.must(s.Resolved(t.Context(), pinned, twoPlatforms(), both))
	for _, r := range s.byName {
		if c := meta.FindStatusCondition(r.status.Conditions, v1alpha1.ConditionConfirmed); c != nil && c.Status == metav1.ConditionFalse {
			t.Errorf("%s says for ever: Confirmed=False %s: %s", r.name, c.Reason, c.Message)
		}
	}
}

// A tag is confirmed when the registry answers. A digest always means the same.
func TestConfirmed(t *testing.T) {
	for reference, want := range map[string]bool{"reg/x:1": true, "reg/x@" + hash("a"): false} {
		s := newStoreTest(t)
		s.must(s.Resolved(t.Context(), reference, plain(hash("a")), amd64))
		if len(s.byName) != 1 {
			t.Fatalf("%d records of %s", len(s.byName), reference)
		}
		for _, r := range s.byName {
			if got := meta.IsStatusConditionTrue(r.status.Conditions, v1alpha1.ConditionConfirmed); got != want {
				t.Errorf("%s is confirmed: %t", reference, got)
			}
		}
	}
}

// Which objects have to be written before a platform is known.
func TestCovered(t *testing.T) {
	manifests := []v1alpha1.ImageManifestSpec{
		manifest(hash("a"), "linux/amd64"), manifest(hash("b"), "linux/arm64/v8"), manifest(hash("c"), "linux/s390x"),
	}
	platforms := []string{"linux/amd64", "linux/arm64", "linux/riscv64", "linux/s390x"}
	for i, want := range [][]string{{"linux/amd64"}, {"linux/arm64"}, {"linux/riscv64", "linux/s390x"}} {
		if got := covered(manifests, i, platforms); !slices.Equal(got, want) {
			t.Errorf("object %d stands for %q, want %q", i, got, want)
		}
	}
}

// A restarted resolver keeps to what registries said.
func TestLimited(t *testing.T) {
	s := newStoreTest(t)
	until := s.Clock.Now().Add(time.Hour).Truncate(time.Second)
	s.must(s.NotResolved(t.Context(), "limited/x:1", Failure{Failures: 1, Reason: v1alpha1.ReasonRateLimited, Message: "429", Retry: until}))
	s.must(s.NotResolved(t.Context(), "gone/x:1", Failure{Failures: 1, Reason: v1alpha1.ReasonNotFound, Message: "404", Retry: until}))
	for range 2 { // nothing stays locked
		if got := s.Limited(); len(got) != 1 || !got["limited"].Equal(until) {
			t.Errorf("%v, want limited until %s", got, until)
		}
	}
}

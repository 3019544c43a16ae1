package imagemanifests

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

var (
	amd64 = index.Platform{OS: "linux", Architecture: "amd64"}
	arm64 = index.Platform{OS: "linux", Architecture: "arm64"}
	every = index.Platform{}
	noon  = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

func sha(s string) string { return fmt.Sprintf("sha256:%064x", s) }

// manifest returns the object of the manifest with the digest of a name. It has
// one layer per letter, and the references.
func manifest(of, platform, layers string, references ...v1alpha1.ImageReference) *v1alpha1.ImageManifest {
	m := &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(sha(of))},
		Spec:       v1alpha1.ImageManifestSpec{Digest: sha(of), Platform: platform},
		Status:     v1alpha1.ImageManifestStatus{References: references},
	}
	for _, l := range layers {
		m.Spec.Layers = append(m.Spec.Layers, v1alpha1.ImageLayer{Digest: sha(string(l)), Size: int64(l)})
		m.Spec.Size += int64(l)
	}
	return m
}

// reference returns a reference that was confirmed some minutes after noon to
// have a digest.
func reference(name, has string, minutes int) v1alpha1.ImageReference {
	r := v1alpha1.ImageReference{Name: name}
	if has != "" {
		confirmed := metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute))
		r.Digest, r.LastConfirmed = sha(has), &confirmed
	}
	return r
}

func unresolved(name string, status metav1.ConditionStatus) *v1alpha1.ImageManifest {
	return &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.UnresolvedName(name)},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: name}},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionConfirmed, Status: "True"},
				{Type: v1alpha1.ConditionResolved, Status: status, Reason: v1alpha1.ReasonNotFound},
			},
		},
	}
}

// lettersOf returns the layers, as letters, that a source has under a name for each
// platform.
func lettersOf(t *testing.T, s *Source, image string) map[index.Platform]string {
	t.Helper()
	canonical, err := imageref.Parse(image)
	if err != nil {
		t.Fatal(err)
	}
	manifests := s.Manifests(canonical)
	if manifests == nil {
		return nil
	}
	found := map[index.Platform]string{}
	for _, m := range manifests {
		letters := ""
		for _, l := range m.Layers {
			letters += string(rune(l.Size))
			if l.Digest != sha(string(rune(l.Size))) {
				t.Fatalf("%s: layer %+v", image, l)
			}
		}
		if _, twice := found[m.Platform]; twice {
			t.Fatalf("%s: twice for %v", image, m.Platform)
		}
		found[m.Platform] = letters
	}
	return found
}

type platforms = map[index.Platform]string

func expect(t *testing.T, s *Source, want map[string]platforms) {
	t.Helper()
	for image, platforms := range want {
		if got := lettersOf(t, s, image); !reflect.DeepEqual(got, platforms) {
			t.Errorf("%s: %v, want %v", image, got, platforms)
		}
	}
}

func TestNames(t *testing.T) {
	s := newSource()
	tag := "docker.io/library/busybox:latest"
	for _, m := range []*v1alpha1.ImageManifest{
		manifest("amd", "linux/amd64", "ab", reference(tag, "index", 0), reference("quay.io/mirrored/busybox:1", "index", 0)),
		manifest("arm", "linux/arm64/v8", "cd", reference(tag, "index", 0)),
		manifest("plain", "", "ba", reference("quay.io/a/b:1", "plain", 0)),
		manifest("scratch", "", "", reference("quay.io/a/scratch@"+sha("scratch"), "scratch", 0)),
	} {
		if err := s.apply(m); err != nil {
			t.Error(err)
		}
	}
	both := platforms{amd64: "ab", arm64: "cd"}
	expect(t, s, map[string]platforms{
		// All forms of a name match; a digest matches in every repository.
		"busybox": both, "docker.io/busybox:latest": both, "docker.io/library/busybox:latest": both,
		"busybox@" + sha("index"): both, "elsewhere.example/x@" + sha("index"): both,
		"busybox:latest@" + sha("index"): both,
		"quay.io/mirrored/busybox:1":     {amd64: "ab"},
		// A manifest that is named by its own digest is pulled on every
		// platform.
		"busybox@" + sha("amd"): {every: "ab"}, "busybox@" + sha("arm"): {every: "cd"},
		"quay.io/a/b:1": {every: "ab"}, "x@" + sha("plain"): {every: "ab"},
		// An image that is known to have no layers is not unknown.
		"x@" + sha("scratch"): {every: ""},
		"busybox:1.36":        nil, "quay.io/library/busybox:latest": nil, "x@" + sha("a"): nil,
	})
}

func TestTagMoves(t *testing.T) {
	const tag = "quay.io/a/b:1"
	before := manifest("old", "linux/amd64", "ab", reference(tag, "oldindex", 0))
	other := manifest("oldarm", "linux/arm64", "cd", reference(tag, "oldindex", 0))
	after := manifest("new", "linux/amd64", "ae", reference(tag, "newindex", 1))
	plain := manifest("plain", "", "f", reference(tag, "plain", 2))
	apply := func(s *Source, objects ...*v1alpha1.ImageManifest) *Source {
		for _, m := range objects {
			if err := s.apply(m); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	// The order of the objects does not matter.
	for _, order := range [][]*v1alpha1.ImageManifest{{before, other, after}, {after, other, before}, {other, after, before, other}} {
		s := apply(newSource(), order...)
		expect(t, s, map[string]platforms{
			tag:                    {amd64: "ae", arm64: "cd"},
			"x@" + sha("oldindex"): {amd64: "ab", arm64: "cd"},
			"x@" + sha("newindex"): {amd64: "ae"},
		})
		// The tag is now a manifest without image index, which is valid for
		// every platform.
		apply(s, plain)
		expect(t, s, map[string]platforms{tag: {every: "f"}, "x@" + sha("newindex"): {amd64: "ae"}})
		// Then one platform has an image index again, which was confirmed
		// later.
		apply(s, manifest("new", "linux/amd64", "ae", reference(tag, "newindex", 3)))
		expect(t, s, map[string]platforms{tag: {every: "f", amd64: "ae"}})

		// References are removed, objects deleted.
		apply(s, manifest("new", "linux/amd64", "ae"))
		expect(t, s, map[string]platforms{tag: {every: "f"}, "x@" + sha("newindex"): nil, "x@" + sha("new"): {every: "ae"}})
		for _, m := range []*v1alpha1.ImageManifest{before, other, after, plain} {
			_ = s.set(m.Name, nil)
		}
		if len(s.images)+len(s.objects) != 0 {
			t.Errorf("still there: %v, %v", s.images, s.objects)
		}
	}

	// In the same second, the order must not matter either.
	a, b := manifest("a", "linux/amd64", "a", reference(tag, "ia", 0)), manifest("b", "linux/amd64", "b", reference(tag, "ib", 0))
	if x, y := lettersOf(t, apply(newSource(), a, b), tag), lettersOf(t, apply(newSource(), b, a), tag); !reflect.DeepEqual(x, y) {
		t.Errorf("%v and %v", x, y)
	}
}

func TestAwaits(t *testing.T) {
	s := newSource()
	for _, m := range []*v1alpha1.ImageManifest{
		manifest("known", "", "a", reference("quay.io/a/known:1", "known", 0)),
		unresolved("quay.io/a/refused:1", metav1.ConditionFalse),
		unresolved("quay.io/a/asked:1", metav1.ConditionUnknown),
	} {
		if err := s.apply(m); err != nil {
			t.Error(err)
		}
	}
	expect(t, s, map[string]platforms{"quay.io/a/refused:1": nil})
	for _, watching := range []bool{false, true, false} {
		s.setWatching(watching)
		for names, awaited := range map[string]bool{
			"quay.io/a/known:1": false, "quay.io/a/refused:1": false, "quay.io/a/asked:1": true, "quay.io/a/new:1": true,
			"quay.io/a/new:1 quay.io/a/refused:1": false, "quay.io/a/known:1 quay.io/a/new:1": false,
		} {
			var canonical []imageref.Canonical
			for _, name := range strings.Fields(names) {
				canonical = append(canonical, imageref.Canonical(name))
			}
			if got := s.Awaits(canonical); got != (awaited && watching) {
				t.Errorf("%s, watching %t: awaited %t", names, watching, got)
			}
		}
	}
	// An image that was refused at first is resolved: another object has the
	// name.
	m := manifest("late", "", "a", reference("quay.io/a/refused:1", "late", 0))
	if err := s.apply(m); err != nil {
		t.Error(err)
	}
	expect(t, s, map[string]platforms{"quay.io/a/refused:1": {every: "a"}})
	_ = s.set(v1alpha1.UnresolvedName("quay.io/a/refused:1"), nil)
	expect(t, s, map[string]platforms{"quay.io/a/refused:1": {every: "a"}})
}

// The functions of OnAnswer are called after every answer, also one that is no manifest.
func TestOnAnswer(t *testing.T) {
	s := newSource()
	s.changed = func([]imageref.Canonical) {}
	var known []bool
	names := []imageref.Canonical{"quay.io/a/b:1", "quay.io/a/refused:1"}
	s.OnAnswer(func() { known = append(known, s.answeredLocked(names[:1]), s.answeredLocked(names[1:])) })
	objects := &store{Source: s}
	if err := objects.Add(manifest("m", "", "a", reference(string(names[0]), "m", 0))); err != nil {
		t.Fatal(err)
	}
	if err := objects.Add(unresolved(string(names[1]), metav1.ConditionFalse)); err != nil {
		t.Fatal(err)
	}
	if want := []bool{true, false, true, true}; !slices.Equal(known, want) {
		t.Errorf("answers known when called: %v, want %v", known, want)
	}
}

// An invalid object counts for nothing, and removes what the object stated
// before.
func TestInvalid(t *testing.T) {
	const tag = "quay.io/a/b:1"
	valid := func() *v1alpha1.ImageManifest {
		return manifest("m", "linux/amd64", "ab", reference(tag, "index", 0))
	}
	for name, change := range map[string]func(*v1alpha1.ImageManifest){
		"digest":                 func(m *v1alpha1.ImageManifest) { m.Spec.Digest = "sha256:x" },
		"digest in another name": func(m *v1alpha1.ImageManifest) { m.Spec.Digest = sha("other") },
		"endless digest":         func(m *v1alpha1.ImageManifest) { m.Spec.Digest = "sha256:" + strings.Repeat("a", 1<<20) },
		"platform":               func(m *v1alpha1.ImageManifest) { m.Spec.Platform = "linux" },
		"empty architecture":     func(m *v1alpha1.ImageManifest) { m.Spec.Platform = "linux/" },
		"layer":                  func(m *v1alpha1.ImageManifest) { m.Spec.Layers[1].Digest = "b" },
		"layer without digest":   func(m *v1alpha1.ImageManifest) { m.Spec.Layers[0].Digest = "" },
		"negative size":          func(m *v1alpha1.ImageManifest) { m.Spec.Layers[0].Size = -1 },
		"size":                   func(m *v1alpha1.ImageManifest) { m.Spec.Layers[0].Size = 1<<40 + 1 },
		"too many layers": func(m *v1alpha1.ImageManifest) {
			m.Spec.Layers = slices.Repeat(m.Spec.Layers, v1alpha1.MaxLayers/2+1)
		},
		"too many references": func(m *v1alpha1.ImageManifest) {
			m.Status.References = slices.Repeat(m.Status.References, v1alpha1.MaxReferences+1)
		},
		"reference":                 func(m *v1alpha1.ImageManifest) { m.Status.References[0].Name = "quay.io/A:1" },
		"endless reference":         func(m *v1alpha1.ImageManifest) { m.Status.References[0].Name += strings.Repeat("a", 1<<20) },
		"digest of a reference":     func(m *v1alpha1.ImageManifest) { m.Status.References[0].Digest = "index" },
		"reference of other digest": func(m *v1alpha1.ImageManifest) { m.Status.References[0].Name = "quay.io/a/b@" + sha("victim") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSource()
			if err := s.apply(valid()); err != nil {
				t.Fatal(err)
			}
			m := valid()
			change(m)
			err := s.apply(m)
			if err == nil || len(err.Error()) > 2000 {
				t.Errorf("error %v", err)
			}
			expect(t, s, map[string]platforms{tag: nil, "x@" + sha("index"): nil, "x@" + sha("victim"): nil})
			if err := s.apply(valid()); err != nil {
				t.Fatal(err)
			}
			expect(t, s, map[string]platforms{tag: {amd64: "ab"}})
		})
	}
}

// An object that states the same again, or was only confirmed, keeps its memory:
// earlier and later answers share it. All objects share digests.
func TestSharesMemory(t *testing.T) {
	s := newSource()
	const tag, other = "quay.io/a/b:1", "quay.io/a/c:1"
	layers := func(name imageref.Canonical) []index.Layer { return s.Manifests(name)[0].Layers }
	for _, m := range []*v1alpha1.ImageManifest{
		manifest("m", "", "ab", reference(tag, "m", 0)), manifest("o", "", "bc", reference(other, "o", 0)),
	} {
		data, err := json.Marshal(m) // as from the apiserver: no memory is shared
		if err != nil {
			t.Fatal(err)
		}
		var own v1alpha1.ImageManifest
		if err := json.Unmarshal(data, &own); err != nil {
			t.Fatal(err)
		}
		if err := s.apply(&own); err != nil {
			t.Fatal(err)
		}
	}
	before := layers(tag)
	if unsafe.StringData(before[1].Digest) != unsafe.StringData(layers(other)[0].Digest) {
		t.Error("two images do not share a digest")
	}
	if err := s.apply(manifest("m", "", "ab", reference(tag, "m", 5))); err != nil {
		t.Fatal(err)
	}
	if after := layers(tag); &after[0] != &before[0] {
		t.Error("an image that was confirmed has other memory")
	}
}

// After many random events the source equals one that has only ever seen the
// objects that are left.
func TestRandomEvents(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4)) //nolint:gosec // a test that can be repeated
	random := func() *v1alpha1.ImageManifest {
		tag := func() string { return fmt.Sprintf("quay.io/a/b:%d", r.IntN(5)) }
		if r.IntN(4) == 0 {
			return unresolved(tag(), []metav1.ConditionStatus{"True", "False", "Unknown"}[r.IntN(3)])
		}
		of := fmt.Sprint(r.IntN(8))
		m := manifest(of, []string{"", "linux/amd64", "linux/arm64"}[r.IntN(3)], "abcdef"[r.IntN(3):3+r.IntN(3)])
		for range r.IntN(4) {
			m.Status.References = append(m.Status.References, reference(tag(), []string{of, "i", "j"}[r.IntN(3)], r.IntN(3)))
		}
		return m
	}
	s, objects := newSource(), map[string]*v1alpha1.ImageManifest{}
	for range 5000 {
		m := random()
		if r.IntN(3) == 0 {
			delete(objects, m.Name)
			_ = s.set(m.Name, nil)
			continue
		}
		objects[m.Name] = m
		if err := s.apply(m); err != nil {
			t.Fatal(err)
		}
	}
	fresh := newSource()
	for _, m := range objects {
		if err := fresh.apply(m); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.images) != len(fresh.images) || len(s.objects) != len(fresh.objects) {
		t.Fatalf("%d names of %d objects, want %d of %d", len(s.images), len(s.objects), len(fresh.images), len(fresh.objects))
	}
	for name := range fresh.images {
		image := string(name)
		if !strings.Contains(image, "/") {
			image = "x@" + image
		}
		if got, want := lettersOf(t, s, image), lettersOf(t, fresh, image); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", image, got, want)
		}
	}
}

// FuzzConvert checks that the result of any object is within bounds, and is
// forgotten with the object.
func FuzzConvert(f *testing.F) {
	for _, m := range []*v1alpha1.ImageManifest{
		manifest("m", "linux/amd64", "ab", reference("quay.io/a/b:1", "index", 0), reference("quay.io/a/b@"+sha("index"), "index", 0)),
		manifest("m", "", "aa", reference("busybox", "m", 0)),
		unresolved("quay.io/a/b:1", metav1.ConditionFalse),
	} {
		data, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"spec":{"digest":"sha256:","layers":[{"size":-1}]},"status":{"references":[{"name":"","lastConfirmed":null}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m v1alpha1.ImageManifest
		if json.Unmarshal(data, &m) != nil {
			return
		}
		s := newSource()
		_ = s.apply(&m)
		if len(s.images) > 2*v1alpha1.MaxReferences+1 {
			t.Fatalf("%d names", len(s.images))
		}
		for name, image := range s.images {
			form := string(name)
			if !strings.Contains(form, "/") {
				form = "x@" + form
			}
			if again, err := imageref.Parse(form); err != nil || again != name {
				t.Fatalf("name %q: %v", name, err)
			}
			for _, m := range image.manifests {
				if len(m.Layers) > v1alpha1.MaxLayers {
					t.Fatalf("%d layers", len(m.Layers))
				}
				for i, l := range m.Layers {
					if l.Size < 0 || l.Size > maxSize || len(l.Digest) > 135 || i > 0 && l.Digest <= m.Layers[i-1].Digest {
						t.Fatalf("layers %+v", m.Layers)
					}
				}
			}
		}
		s.slim(&m)
		again := newSource()
		_ = again.apply(&m)
		if len(again.images) != len(s.images) {
			t.Fatalf("%d names, of the object as it is kept %d", len(s.images), len(again.images))
		}
		_ = s.set(m.Name, nil)
		if len(s.images)+len(s.objects) != 0 {
			t.Fatalf("not forgotten: %v", s.images)
		}
	})
}

// All references of a manifest are known, however many objects hold them, and whichever of
// these comes or goes first.
func TestManyReferencesOfOneManifest(t *testing.T) {
	const references = 500
	s := newSource()
	var pages []*v1alpha1.ImageManifest
	for i := range references {
		page := i / v1alpha1.MaxReferences
		if page == len(pages) {
			m := manifest("one", "linux/amd64", "abc")
			m.Name = v1alpha1.PageName(sha("one"), page)
			pages = append(pages, m)
		}
		pages[page].Status.References = append(pages[page].Status.References, reference(fmt.Sprintf("quay.io/a/one:%d", i), "one", i))
	}
	slices.Reverse(pages)
	for _, page := range pages {
		if err := s.apply(page); err != nil {
			t.Fatal(err)
		}
	}
	for i := range references {
		if got := lettersOf(t, s, fmt.Sprintf("quay.io/a/one:%d", i)); !reflect.DeepEqual(got, map[index.Platform]string{amd64: "abc"}) {
			t.Fatalf("reference %d: %v", i, got)
		}
	}
	byDigest := "quay.io/b/other@" + sha("one")
	for _, page := range pages {
		if got := lettersOf(t, s, byDigest); !reflect.DeepEqual(got, map[index.Platform]string{every: "abc"}) {
			t.Errorf("by digest: %v", got)
		}
		if err := s.set(page.Name, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := lettersOf(t, s, byDigest); got != nil || s.layers != 0 {
		t.Errorf("left: %v, %d layers", got, s.layers)
	}
	forged := manifest("one", "linux/amd64", "abc", reference("quay.io/a/one:1", "one", 1))
	for _, name := range []string{"sha256-1", forged.Name + "-1", forged.Name + "-02", forged.Name + "-x", forged.Name + "-"} {
		forged.Name = name
		if err := s.apply(forged); err == nil {
			t.Errorf("%s is taken for an object of %s", name, sha("one"))
		}
	}
}

// However many objects the apiserver has, memory is bounded, and what is known stays.
func TestSourceIsBounded(t *testing.T) {
	s := newSource()
	object := func(i, layers int) *object {
		return &object{names: []name{{imageref.Canonical(fmt.Sprint("quay.io/a/b:", i)), 0}}, layers: make([]index.Layer, layers)}
	}
	for i := range maxObjects + 10 {
		if err := s.set(fmt.Sprint(i), object(i, 0)); (err != nil) != (i >= maxObjects) {
			t.Fatalf("object %d: %v", i, err)
		}
	}
	if n := len(s.objects); n != maxObjects {
		t.Errorf("%d objects", n)
	}
	if err := s.set("0", object(0, maxLayers+1)); err == nil || s.objects["0"] != nil {
		t.Errorf("too many layers: %v", err)
	}
	if err := s.set("1", object(1, maxLayers)); err != nil {
		t.Error(err)
	}
	if err := s.set("2", object(2, 1)); err == nil {
		t.Error("one layer more")
	}
	if err := s.set("1", nil); err != nil {
		t.Error(err)
	}
	if err := s.set("2", object(2, 1)); err != nil || s.layers != 1 {
		t.Errorf("after others are gone: %v, %d layers", err, s.layers)
	}
	many := object(3, 0)
	for i := range maxNames {
		many.names = append(many.names, name{imageref.Canonical(fmt.Sprint("quay.io/many/x:", i)), 0})
	}
	if err := s.set("3", many); err == nil || s.objects["3"] != nil {
		t.Errorf("too many names: %v", err)
	}
	for key := range s.objects {
		if err := s.set(key, nil); err != nil {
			t.Fatal(err)
		}
	}
	if s.layers != 0 || s.names != 0 {
		t.Errorf("%d layers and %d names of nothing", s.layers, s.names)
	}
}

package imagemanifests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// holds returns the layers, as letters, that a node has; "?" if that is not known.
func holds(s *Source, name imageref.Canonical, platform index.Platform) string {
	manifest, ok := s.ManifestOnNode(name, platform)
	if !ok {
		return "?"
	}
	letters := ""
	for _, l := range manifest.Layers {
		letters += string(rune(l.Size))
	}
	return letters
}

func TestManifestOnNode(t *testing.T) {
	const tag = "quay.io/a/b:1"
	s := newSource()
	check := func(when string, name imageref.Canonical, want map[index.Platform]string) {
		t.Helper()
		for _, platform := range []index.Platform{amd64, arm64, every} {
			if got := holds(s, name, platform); got != want[platform] {
				t.Errorf("%s: %s on %v is %s, want %s", when, name, platform, got, want[platform])
			}
		}
	}
	apply := func(objects ...*v1alpha1.ImageManifest) {
		t.Helper()
		for _, m := range objects {
			if err := s.apply(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	unknown := map[index.Platform]string{amd64: "?", arm64: "?", every: "?"}
	check("nothing", tag, unknown)
	apply(manifest("amd", "linux/amd64", "ab", reference(tag, "index", 0)), manifest("arm", "linux/arm64/v8", "cd", reference(tag, "index", 0)),
		unresolved("quay.io/a/refused:1", metav1.ConditionFalse))
	ofIndex := map[index.Platform]string{amd64: "ab", arm64: "cd", every: "?"}
	check("index", imageref.Canonical(sha("index")), ofIndex)
	check("tag of an index", tag, ofIndex)
	check("refused", "quay.io/a/refused:1", unknown)
	onAll := map[index.Platform]string{amd64: "cd", arm64: "cd", every: "cd"}
	check("manifest of another platform", imageref.Canonical(sha("arm")), onAll)

	// The tag moved: a node may have either. What other platforms get now may not be known yet.
	apply(manifest("new", "linux/amd64", "ae", reference(tag, "newindex", 9)))
	check("a tag that moved", tag, unknown)
	check("the index of before", imageref.Canonical(sha("index")), ofIndex)
	check("the new index", imageref.Canonical(sha("newindex")), map[index.Platform]string{amd64: "ae", arm64: "?", every: "?"})
	// A manifest without an index may be on any node.
	apply(manifest("plain", "", "f", reference(tag, "plain", 10)))
	check("a tag that was an index", tag, unknown)
	s.set(v1alpha1.ManifestName(sha("amd")), nil)
	s.set(v1alpha1.ManifestName(sha("arm")), nil)
	s.set(v1alpha1.ManifestName(sha("new")), nil)
	check("only one is left, but a node may have one of before", tag, unknown)
	ofPlain := map[index.Platform]string{amd64: "f", arm64: "f", every: "f"}
	check("its digest", imageref.Canonical(sha("plain")), ofPlain)
	s.set(v1alpha1.ManifestName(sha("plain")), nil)
	apply(manifest("plain", "", "f", reference(tag, "plain", 11)))
	check("the tag was not known meanwhile", tag, ofPlain)

	// An object that states the digest of another manifest does not change what that is.
	apply(manifest("victim", "", "g"), manifest("liar", "linux/amd64", "h", reference("quay.io/a/b:2", "victim", 11)))
	check("a lie about a manifest", imageref.Canonical(sha("victim")), map[index.Platform]string{amd64: "g", arm64: "g", every: "g"})
	// A manifest with more references than one object holds has several.
	const another = "quay.io/a/d:2"
	first := manifest("many", "linux/amd64", "kl", reference("quay.io/a/d:1", "manyindex", 0))
	second := manifest("many", "linux/amd64", "kl", reference(another, "manyindex", 0))
	second.Name = v1alpha1.PageName(sha("many"), 1)
	apply(first, second)
	ofMany := map[index.Platform]string{amd64: "kl", arm64: "?", every: "?"}
	check("an index in two objects of a manifest", imageref.Canonical(sha("manyindex")), ofMany)
	check("a tag in the second one", another, ofMany)
	first.Status.References = append(first.Status.References, reference(another, "manyindex", 1))
	apply(first)
	check("a tag in both", another, ofMany)
	// Two objects have the same index for the same platform.
	apply(manifest("one", "linux/amd64", "i", reference("quay.io/a/c:1", "both", 0)), manifest("two", "linux/amd64", "j", reference("quay.io/a/c:2", "both", 0)))
	check("two manifests of an index", imageref.Canonical(sha("both")), unknown)
}

// Whoever follows what changed has the answers of ManifestOnNode at any time; and a confirmation,
// which changes nothing, is not news.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 4)) //nolint:gosec // a test that can be repeated
	tag := func(i int) string { return fmt.Sprintf("quay.io/a/b:%d", i) }
	var names []imageref.Canonical
	for i := range 8 {
		names = append(names, imageref.Canonical(sha(fmt.Sprint(i))), imageref.Canonical(tag(i)))
	}
	names = append(names, imageref.Canonical(sha("i")), imageref.Canonical(sha("j")))
	type question struct {
		imageref.Canonical
		index.Platform
	}
	s, known := newSource(), map[question]string{}
	ask := func(name imageref.Canonical) {
		for _, platform := range []index.Platform{amd64, arm64, every} {
			known[question{name, platform}] = holds(s, name, platform)
		}
	}
	notified := 0
	s.changed = func(names []imageref.Canonical) {
		notified += len(names)
		for _, name := range names {
			ask(name)
		}
	}
	for _, name := range names {
		ask(name)
	}
	for step := range 4000 {
		of := fmt.Sprint(r.IntN(8))
		m := manifest(of, []string{"", "linux/amd64", "linux/arm64"}[r.IntN(3)], "abcdef"[r.IntN(3):3+r.IntN(3)])
		for range r.IntN(4) {
			m.Status.References = append(m.Status.References, reference(tag(r.IntN(5)), []string{of, "i", "j"}[r.IntN(3)], r.IntN(3)))
		}
		switch r.IntN(4) {
		case 0:
			s.set(m.Name, nil)
		case 1:
			m = unresolved(tag(r.IntN(5)), metav1.ConditionFalse)
			fallthrough
		default:
			if err := s.apply(m); err != nil {
				t.Fatal(err)
			}
		}
		s.notify()
		for _, name := range names {
			for _, platform := range []index.Platform{amd64, arm64, every} {
				if got, want := known[question{name, platform}], holds(s, name, platform); got != want {
					t.Fatalf("step %d: %s on %v is known as %s, it is %s", step, name, platform, got, want)
				}
			}
		}
	}
	apply := func(minutes int) {
		if err := s.apply(manifest("m", "linux/amd64", "ab", reference(tag(7), "m", minutes))); err != nil {
			t.Fatal(err)
		}
		s.notify()
	}
	apply(0)
	notified = 0
	apply(5)
	if notified != 0 {
		t.Errorf("notified of %d names that were only confirmed", notified)
	}
}

// The first list is one call, whatever its size, and then each event is one; a source that
// cannot watch has synced too.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		server := newAPIServer(t)
		server.set(http.StatusForbidden)
		s, err := NewSource(&rest.Config{Host: "https://apiserver.example", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		s.leases = fake.NewClientset().CoordinationV1().Leases(leaseNamespace)
		var calls [][]imageref.Canonical
		if s.HasSynced() {
			t.Error("synced before it was started")
		}
		s.Start(ctx, func(names []imageref.Canonical) { calls = append(calls, slices.Sorted(slices.Values(names))) })
		time.Sleep(time.Hour)
		synctest.Wait()
		if !s.HasSynced() || len(calls) != 0 {
			t.Errorf("without the right: synced %t, calls %v", s.HasSynced(), calls)
		}
		one := manifest("one", "", "a", reference("quay.io/a/one:1", "one", 0))
		two := manifest("two", "", "b", reference("quay.io/a/two:1", "two", 0))
		server.set(http.StatusOK, one, two)
		time.Sleep(time.Hour)
		synctest.Wait()
		names := func(of ...string) (all []imageref.Canonical) {
			for _, name := range of {
				all = append(all, imageref.Canonical("quay.io/a/"+name+":1"), imageref.Canonical(sha(name)))
			}
			slices.Sort(all)
			return all
		}
		if want := [][]imageref.Canonical{names("one", "two")}; !reflect.DeepEqual(calls, want) {
			t.Errorf("the list: %v, want %v", calls, want)
		}
		calls = nil
		server.event("ADDED", manifest("three", "", "c", reference("quay.io/a/three:1", "three", 0)))
		server.event("DELETED", two)
		synctest.Wait()
		if want := [][]imageref.Canonical{names("three"), names("two")}; !reflect.DeepEqual(calls, want) {
			t.Errorf("events: %v, want %v", calls, want)
		}
		cancel()
		server.CloseWatch()
		time.Sleep(time.Hour)
	})
}

// Of nodes that use layers again only above the same layers, those count that are the same
// from the bottom.
func TestChains(t *testing.T) {
	s := newSource()
	keys := func(of, layers string) map[string]int64 {
		t.Helper()
		if err := s.apply(manifest(of, "", layers)); err != nil {
			t.Fatal(err)
		}
		manifest, ok := s.ManifestOnNode(imageref.Canonical(sha(of)), amd64)
		found, ordered := manifest.Chain()
		if !ok || !ordered || !slices.IsSortedFunc(found, func(a, b index.Layer) int { return slices.Compare([]byte(a.Digest), []byte(b.Digest)) }) {
			t.Fatalf("%s: %v", of, found)
		}
		sizes := map[string]int64{}
		for _, l := range found {
			sizes[l.Digest] = l.Size
		}
		return sizes
	}
	// shared returns how many bytes of two images are the same.
	shared := func(a, b map[string]int64) (sum int64) {
		for key, size := range a {
			if other, ok := b[key]; ok && other == size {
				sum += size
			}
		}
		return sum
	}
	one := keys("one", "abc")
	for i, test := range []struct {
		layers string
		shared int64
	}{{"abc", 'a' + 'b' + 'c'}, {"abd", 'a' + 'b'}, {"adc", 'a'}, {"bac", 0}, {"dabc", 0}, {"c", 0}, {"a", 'a'}} {
		if got := shared(one, keys(fmt.Sprint(i), test.layers)); got != test.shared {
			t.Errorf("%s shares %d bytes with abc, want %d", test.layers, got, test.shared)
		}
	}
	if twice := keys("twice", "aba"); len(twice) != 3 || shared(twice, twice) != 'a'+'b' {
		t.Errorf("a layer that comes twice: %v", twice)
	}
	if bottom := one[sha("a")]; bottom != 'a' {
		t.Errorf("the first layer: %v", one)
	}
}

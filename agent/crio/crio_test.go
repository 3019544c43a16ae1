package crio

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

var must = testkit.Must

func digest(name string) string { return fmt.Sprintf("sha256:%064x", name) }

// store is a containers-storage on the disk.
type store struct {
	t      testing.TB
	root   string
	images []map[string]any
}

func newStore(t testing.TB) *store {
	s := &store{t: t, root: t.TempDir()}
	must(t, os.Mkdir(filepath.Join(s.root, Folder), 0o700))
	return s
}

func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.root, Folder}, parts...)...)
}

// manifestOf returns a manifest with layers of as many bytes as their names are long.
func manifestOf(layers ...string) string {
	texts := make([]string, len(layers))
	for i, l := range layers {
		texts[i] = fmt.Sprintf(`{"digest":%q,"size":%d}`, digest(l), len(l))
	}
	return `{"schemaVersion":2,"config":{"digest":"` + digest("config") + `","size":1},"layers":[` + strings.Join(texts, ",") + "]}"
}

// add adds an image with a manifest to the list; without one if that is empty.
func (s *store) add(id, manifest string, names ...string) {
	s.t.Helper()
	if manifest != "" {
		must(s.t, os.MkdirAll(s.path(id), 0o700))
		must(s.t, os.WriteFile(s.path(id, "manifest"), []byte(manifest), 0o600))
	}
	s.images = append(s.images, map[string]any{
		"id": id, "digest": digest("manifest of " + id), "names": names, "layer": "top",
		"big-data-digests": map[string]string{"manifest": digest("manifest of " + id), "manifest-x": digest("index of " + id), "sha256:config": digest("config")},
	})
}

// write replaces the list, as the store does.
func (s *store) write() {
	s.t.Helper()
	text, err := json.Marshal(s.images)
	must(s.t, err)
	must(s.t, os.WriteFile(s.path(".tmp"), text, 0o600))
	must(s.t, os.Rename(s.path(".tmp"), s.path("images.json")))
}

func (s *store) read(r *Reader) *read.Result {
	s.t.Helper()
	result, err := r.Read(s.t.Context())
	must(s.t, err)
	return result
}

// texts returns images as texts: the sorted names and the layers in order.
func texts(images []contents.Image) []string {
	all := []string{}
	for _, i := range images {
		names := slices.Sorted(slices.Values(i.Names))
		layers := []string{}
		for _, l := range i.Layers {
			layers = append(layers, l.String())
		}
		all = append(all, strings.Join(names, " ")+" = "+strings.Join(layers, ", "))
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, what string, got []contents.Image, want ...string) {
	t.Helper()
	for i := range want {
		names, layers, _ := strings.Cut(want[i], " = ")
		sorted := strings.Fields(names)
		slices.Sort(sorted)
		want[i] = strings.Join(sorted, " ") + " = " + layers
	}
	slices.Sort(want)
	if got := texts(got); !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// of returns the digests that an image has as names.
func of(id string) string { return digest("index of "+id) + " " + digest("manifest of "+id) }

func TestRead(t *testing.T) {
	s := newStore(t)
	r := NewReader(s.root, filepath.Join(s.root, "no-additional-store"))
	expect(t, "no image was ever pulled", s.read(r).Contents.Images)

	s.add("aa", manifestOf("base", "top"), "quay.io/a:1", "quay.io/a:latest", "quay.io/a@"+digest("old"))
	s.add("bb", manifestOf("base", "top", "base"))
	s.add("cc", "{", "quay.io/c:1")
	s.add("dd", strings.Replace(manifestOf("plain"), `"size":5}`, `"size":5,"mediaType":"application/vnd.oci.image.layer.v1.tar+encrypted"}`, 1), "quay.io/d:1")
	s.images = append(s.images,
		map[string]any{"id": "artifact", "names": []string{"quay.io/artifact:1"}},
		map[string]any{"id": "../../../etc", "names": []string{"quay.io/evil:1"}, "layer": "top"},
		map[string]any{"id": "", "names": []string{"quay.io/evil:2"}, "layer": "top"})
	s.write()
	result := s.read(r)
	base, top := digest("base")+" 4", digest("top")+" 3"
	want := []string{
		"quay.io/a:1 quay.io/a:latest " + digest("old") + " " + of("aa") + " = " + base + ", " + top,
		of("bb") + " = " + base + ", " + top + ", " + base,
		"quay.io/c:1 " + of("cc") + " = ",
		"quay.io/d:1 " + of("dd") + " = ",
	}
	expect(t, "images", result.Contents.Images, want...)
	if result.Incomplete || result.Skipped["manifest"] != 1 || result.Skipped["layers"] != 1 || result.Contents.Runtime != "cri-o" || result.Contents.InChains || result.Contents.JoinsDownloads != nil {
		t.Errorf("%+v", result)
	}
	if again := s.read(r); !reflect.DeepEqual(again.Skipped, result.Skipped) {
		t.Errorf("skipped %v, before %v", again.Skipped, result.Skipped)
	}
	// What was read once is not read again.
	must(t, os.WriteFile(s.path("aa", "manifest"), []byte(manifestOf("other")), 0o600))
	expect(t, "again", s.read(r).Contents.Images, want...)
	// An image that was pulled again has another manifest.
	s.images[0]["big-data-digests"] = map[string]string{"manifest": digest("another")}
	s.write()
	want[0] = "quay.io/a:1 quay.io/a:latest " + digest("old") + " " + digest("another") + " " + digest("manifest of aa") + " = " + digest("other") + " 5"
	expect(t, "another manifest", s.read(r).Contents.Images, want...)
	s.images = s.images[1:]
	s.write()
	expect(t, "removed", s.read(r).Contents.Images, want[1:]...)
	if r.known.Len() != 3 {
		t.Errorf("%d manifests are remembered", r.known.Len())
	}
}

// An image that is listed before its manifest is there, or longer, is looked at again.
func TestIncomplete(t *testing.T) {
	s := newStore(t)
	r := NewReader(s.root)
	s.add("aa", manifestOf("base"), "quay.io/a:1")
	s.add("bb", "", "quay.io/b:1")
	s.write()
	result := s.read(r)
	expect(t, "without a manifest", result.Contents.Images, "quay.io/a:1 "+of("aa")+" = "+digest("base")+" 4")
	if !result.Incomplete {
		t.Error("it is not looked at again")
	}
	must(t, os.MkdirAll(s.path("bb"), 0o700))
	must(t, os.WriteFile(s.path("bb", "manifest"), []byte(manifestOf("top")), 0o600))
	if result = s.read(r); result.Incomplete || len(result.Contents.Images) != 2 {
		t.Errorf("%+v", result)
	}
}

// A manifest that never comes is not waited for for ever: the image counts by its names.
func TestManifestNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		r := NewReader(s.root)
		s.add("aa", manifestOf("base"), "quay.io/a:1")
		s.add("bb", "", "quay.io/b:1")
		s.write()
		incomplete := 0
		for range 10 {
			if s.read(r).Incomplete {
				incomplete++
			}
			time.Sleep(time.Second)
		}
		if incomplete == 0 || incomplete > 6 {
			t.Errorf("%d of 10 readings would have it read again soon", incomplete)
		}
		result := s.read(r)
		expect(t, "it never came", result.Contents.Images, "quay.io/a:1 "+of("aa")+" = "+digest("base")+" 4", "quay.io/b:1 "+of("bb")+" = ")
		if result.Incomplete || result.Skipped["manifest"] != 1 {
			t.Errorf("%+v", result)
		}
		// It comes after all.
		must(t, os.MkdirAll(s.path("bb"), 0o700))
		must(t, os.WriteFile(s.path("bb", "manifest"), []byte(manifestOf("top")), 0o600))
		expect(t, "it came", s.read(r).Contents.Images, "quay.io/a:1 "+of("aa")+" = "+digest("base")+" 4", "quay.io/b:1 "+of("bb")+" = "+digest("top")+" 3")
		if len(r.missing) > 0 {
			t.Errorf("%v are still missing", r.missing)
		}
	})
}

// A manifest that cannot be read for a while is read later: the file system may fail.
func TestUnreadableManifest(t *testing.T) {
	s := newStore(t)
	r := NewReader(s.root)
	s.add("aa", manifestOf("base"), "quay.io/a:1")
	s.write()
	must(t, os.Remove(s.path("aa", "manifest")))
	must(t, os.Symlink("manifest", s.path("aa", "manifest"))) // leads to itself
	for range 2 {
		result := s.read(r)
		expect(t, "it cannot be read", result.Contents.Images, "quay.io/a:1 "+of("aa")+" = ")
		if !result.Incomplete || result.Skipped["manifest"] != 1 {
			t.Errorf("%+v", result)
		}
	}
	must(t, os.Remove(s.path("aa", "manifest")))
	must(t, os.WriteFile(s.path("aa", "manifest"), []byte(manifestOf("base")), 0o600))
	result := s.read(r)
	expect(t, "it can be read", result.Contents.Images, "quay.io/a:1 "+of("aa")+" = "+digest("base")+" 4")
	if result.Incomplete {
		t.Error("it would be read again soon")
	}
}

// A store that cannot be read is an error with the cause, until it can.
func TestUnreadableStore(t *testing.T) {
	s := newStore(t)
	r := NewReader(s.root)
	s.add("aa", manifestOf("base"), "quay.io/a:1")
	s.write()
	want := "quay.io/a:1 " + of("aa") + " = " + digest("base") + " 4"
	expect(t, "at first", s.read(r).Contents.Images, want)

	must(t, os.Rename(s.path("images.json"), s.path("kept")))
	must(t, os.Mkdir(s.path("images.json"), 0o700))
	if result, err := r.Read(t.Context()); err == nil || !strings.Contains(err.Error(), s.root+": images.json is no regular file") {
		t.Errorf("a folder in place of the list: %+v, %v", result, err)
	}
	must(t, os.Remove(s.path("images.json")))
	must(t, os.Rename(s.path("kept"), s.path("images.json")))

	if os.Getuid() != 0 {
		t.Skip("only root can be another user for a moment")
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread, which is another user's now, ends with this
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			failed <- err
			return
		}
		_, err := r.Read(t.Context())
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), s.root) {
		t.Errorf("as another user: %v", err)
	}
	expect(t, "as before", s.read(r).Contents.Images, want)
}

func TestAdditionalStores(t *testing.T) {
	one, two := newStore(t), newStore(t)
	one.add("aa", manifestOf("one"), "quay.io/a:1")
	two.add("aa", manifestOf("two"), "quay.io/a:1")
	two.add("bb", manifestOf("two"), "quay.io/b:1")
	one.write()
	two.write()
	r := NewReader(one.root, two.root)
	expect(t, "two stores", one.read(r).Contents.Images,
		"quay.io/a:1 "+of("aa")+" = "+digest("one")+" 3", "quay.io/b:1 "+of("bb")+" = "+digest("two")+" 3")
}

// 10,000 images are all read, each manifest once. One of 10,000 layers has none that could be
// known.
func TestTenThousandImages(t *testing.T) {
	const n, manifests = 10_000, 100
	s := newStore(t)
	for i := range n {
		text := ""
		if i < manifests {
			text = manifestOf("base", fmt.Sprint("own", i))
		}
		s.add(fmt.Sprintf("image%d", i), text, fmt.Sprintf("quay.io/a:%d", i))
		s.images[i]["big-data-digests"] = map[string]string{"manifest": digest(fmt.Sprint("manifest", i%manifests))}
	}
	s.add("many", manifestOf(slices.Repeat([]string{"base"}, 10_000)...), "quay.io/many:1")
	s.write()
	r := NewReader(s.root)
	for range 2 {
		result := s.read(r)
		if spec := result.Contents.Spec(0, v1alpha1.MaxNodeListBytes); spec.TotalImages != n+1 || spec.TotalLayers != 1+manifests || result.Incomplete || r.known.Len() != manifests+1 {
			t.Fatalf("%d images, %d layers, %d manifests, skipped %v", spec.TotalImages, spec.TotalLayers, r.known.Len(), result.Skipped)
		}
		if result.Skipped["layers"] != 1 {
			t.Errorf("skipped %v", result.Skipped)
		}
		// Not from the disk again.
		must(t, os.RemoveAll(s.path("image0")))
	}
}

// Nothing in a store leads out of it or keeps the reader for long.
func TestHostileStores(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(manifestOf("secret")), 0o600))
	for name, change := range map[string]func(s *store){
		"a link in place of a manifest": func(s *store) {
			must(t, os.Remove(s.path("aa", "manifest")))
			must(t, os.Symlink(secret, s.path("aa", "manifest")))
		},
		"a link in place of its folder": func(s *store) {
			must(t, os.RemoveAll(s.path("aa")))
			must(t, os.Symlink(filepath.Dir(secret), s.path("aa")))
		},
		"a folder": func(s *store) {
			must(t, os.Remove(s.path("aa", "manifest")))
			must(t, os.Mkdir(s.path("aa", "manifest"), 0o700))
		},
		"a large manifest": func(s *store) {
			must(t, os.WriteFile(s.path("aa", "manifest"), make([]byte, 5<<20), 0o600))
		},
	} {
		s := newStore(t)
		s.add("aa", manifestOf("base"), "quay.io/a:1")
		s.write()
		change(s)
		result := s.read(NewReader(s.root))
		expect(t, name, result.Contents.Images, "quay.io/a:1 "+of("aa")+" = ")
	}
	for name, text := range map[string]string{"no JSON": "[{", "another type": `{"images":[]}`, "": ""} {
		s := newStore(t)
		must(t, os.WriteFile(s.path("images.json"), []byte(text), 0o600))
		if result, err := NewReader(s.root).Read(t.Context()); err == nil || !strings.Contains(err.Error(), s.root) {
			t.Errorf("%q: %+v, %v", name, result, err)
		}
	}
	s := newStore(t)
	for range maxImages + 3 {
		s.images = append(s.images, map[string]any{"id": "", "layer": "top"})
	}
	s.write()
	if result := s.read(NewReader(s.root)); result.Skipped["too-many-images"] != 3 {
		t.Errorf("%+v", result)
	}
}

func TestMissingStore(t *testing.T) {
	root := filepath.Join(t.TempDir(), "missing")
	if _, err := NewReader(root).Read(t.Context()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), root) {
		t.Error(err)
	}
	if err := NewReader(root).Watch(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), root) {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	s := newStore(t)
	changes, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- NewReader(s.root).Watch(t.Context(), func() { changes <- struct{}{} }) }()
	change := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case err := <-ended:
			t.Fatalf("%s: the watch ended: %v", what, err)
		case <-time.After(time.Minute):
			t.Fatalf("%s: not seen", what)
		}
	}
	change("what was before")
	s.add("aa", manifestOf("base"), "quay.io/a:1")
	s.write()
	change("a first image")
	s.write()
	change("the list is replaced")
	// The folder goes: a container does not see the one in its place.
	open, err := os.OpenRoot(s.path())
	must(t, err)
	if gone(open) {
		t.Error("the folder is there")
	}
	must(t, os.RemoveAll(s.path()))
	if !gone(open) {
		t.Error("the folder was removed")
	}
	must(t, open.Close()) // only then the kernel sends the event
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended without an error")
		}
	case <-time.After(time.Minute):
		t.Fatal("the watch goes on without the folder")
	}
	// If one change were seen several times, it could have stood for the next one.
	if n := len(changes); n != 2 { // the list was removed, and the folder
		t.Errorf("%d changes after the list was replaced, want 2", n)
	}
}

// FuzzList: whatever is in the list, reading ends with images that a NodeLayers can list.
func FuzzList(f *testing.F) {
	f.Add(`[{"id":"aa","names":["quay.io/a:1"],"layer":"x","big-data-digests":{"manifest":"`+digest("a")+`"}}]`, manifestOf("base"))
	f.Add(`[{"id":"aa","layer":"x"},{"id":"aa","layer":"x"},{"id":"bb","layer":"x"}]`, "{}")
	f.Add(`[null]`, "")
	f.Add(`[{"id":"aa","names":["a b","\n","quay.io/a:1","quay.io/<a>:2"],"digest":"sha256:x","layer":"x"}]`, manifestOf("base", "top"))
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("quay.io/a:%0380d", i))
	}
	f.Add(`[{"id":"aa","names":["`+strings.Join(many, `","`)+`"],"layer":"x"}]`, strings.ReplaceAll(manifestOf("base"), `"size":`, `"size":-`))
	s := newStore(f)
	must(f, os.Mkdir(s.path("aa"), 0o700))
	f.Fuzz(func(t *testing.T, list, text string) {
		must(t, os.WriteFile(s.path("images.json"), []byte(list), 0o600))
		must(t, os.WriteFile(s.path("aa", "manifest"), []byte(text), 0o600))
		result, err := NewReader(s.root).Read(t.Context())
		if err != nil {
			return
		}
		object := &v1alpha1.NodeLayers{Spec: *result.Contents.Spec(0, v1alpha1.MaxNodeListBytes)}
		object.Spec.RenewSeconds = 1
		if errs := object.Validate(); len(errs) > 0 || object.Spec.TotalImages > maxImages {
			t.Errorf("%d images: %v", object.Spec.TotalImages, errs)
		}
	})
}

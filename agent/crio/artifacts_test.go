package crio

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/internal/poll"
)

// artifact adds the manifest of an artifact, and returns its digest.
func (s *store) artifact(name, manifest string) string {
	s.t.Helper()
	blobs := filepath.Join(s.root, "artifacts/blobs/sha256")
	must(s.t, os.MkdirAll(blobs, 0o700))
	if manifest != "" {
		must(s.t, os.WriteFile(filepath.Join(blobs, strings.TrimPrefix(digest(name), "sha256:")), []byte(manifest), 0o600))
	}
	return digest(name)
}

// index writes the index of artifacts, each as its digest and its name, if it has one.
func (s *store) index(entries ...string) {
	s.t.Helper()
	manifests := []map[string]any{}
	for _, entry := range entries {
		digest, name, named := strings.Cut(entry, " ")
		descriptor := map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 300}
		if named {
			descriptor["annotations"] = map[string]string{"org.opencontainers.image.ref.name": name, "other": "quay.io/other:1"}
		}
		manifests = append(manifests, descriptor)
	}
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": manifests, "annotations": map[string]string{"a": "b"}})
	must(s.t, err)
	s.indexText(string(text))
}

func (s *store) indexText(text string) {
	s.t.Helper()
	must(s.t, os.MkdirAll(filepath.Join(s.root, "artifacts"), 0o700))
	must(s.t, os.WriteFile(filepath.Join(s.root, "artifacts", "index.json"), []byte(text), 0o600))
}

// withImage returns a store with an image, and the line that expect wants of it.
func withImage(t *testing.T) (s *store, line string) {
	s = newStore(t)
	s.add("aa", manifestOf("base"), "quay.io/a:1")
	s.write()
	return s, "quay.io/a:1 " + of("aa") + " = " + digest("base") + " 4"
}

// Artifacts are listed as CRI-O lists them to the kubelet, with their blobs as layers.
func TestArtifacts(t *testing.T) {
	s, image := withImage(t)
	r := NewReader(s.root)
	model := s.artifact("model", manifestOf("weights", "tokens"))
	older, plain := s.artifact("older", manifestOf("weights")), s.artifact("plain", manifestOf("base"))
	s.index(model+" quay.io/models/m:1", model+" registry:5000/m:2", older, plain+" quay.io/models/untagged", "sha256:12 quay.io/bad:1",
		s.artifact("by digest", manifestOf("base"))+" quay.io/models/m@"+digest("by digest"), older+" quay.io/models/m:1",
		s.artifact("another", manifestOf("base"))+" quay.io/models/m:1")
	weights, tokens := digest("weights")+" 7", digest("tokens")+" 6"
	want := []string{
		image, model + " quay.io/models/m:1 registry:5000/m:2 = " + weights + ", " + tokens, older + " = " + weights,
		plain + " = " + digest("base") + " 4", digest("by digest") + " = " + digest("base") + " 4",
	}
	result := s.read(r)
	if expect(t, "artifacts", result.Contents.Images, slices.Clone(want)...); result.Incomplete || len(result.Skipped) > 0 {
		t.Errorf("%+v", result)
	}
	s.artifact("model", manifestOf("other")) // read once
	expect(t, "again", s.read(r).Contents.Images, want...)

	for _, empty := range []string{`{"schemaVersion":2,"manifests":null}`, `{"schemaVersion":2}`, `{"manifests":[],"x":{"manifests":[{}]}}`} {
		s.indexText(empty)
		if result = s.read(r); result.Incomplete || len(result.Skipped) > 0 {
			t.Errorf("%s: %+v", empty, result)
		}
		expect(t, empty, result.Contents.Images, image)
	}
	must(t, os.RemoveAll(filepath.Join(s.root, "artifacts")))
	if result = s.read(r); result.Incomplete || len(result.Skipped) > 0 {
		t.Errorf("a CRI-O before 1.33: %+v", result)
	}
}

// Of a name that several stores have, the artifact of an additional store counts, which need not have images.
func TestArtifactsOfAdditionalStores(t *testing.T) {
	s, image := withImage(t)
	other := &store{t: t, root: t.TempDir()}
	s.index(s.artifact("own", manifestOf("own"))+" quay.io/m:1", s.artifact("both", manifestOf("both"))+" quay.io/m:2")
	other.index(other.artifact("theirs", manifestOf("theirs"))+" quay.io/m:1", other.artifact("both", manifestOf("both"))+" quay.io/m:3")
	expect(t, "two stores", s.read(NewReader(s.root, other.root, "/nowhere")).Contents.Images, image,
		digest("theirs")+" quay.io/m:1 = "+digest("theirs")+" 6", digest("both")+" quay.io/m:2 quay.io/m:3 = "+digest("both")+" 4")
}

// An index that cannot be read is counted and read again soon; images are listed all the same.
func TestUnreadableArtifacts(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(`{"manifests":[{"digest":"`+digest("x")+`"}]}`), 0o600))
	for name, change := range map[string]func(s *store, index string){
		"written in part": func(s *store, _ string) { s.indexText(`{"manifests":[`) },
		"empty":           func(s *store, _ string) { s.indexText("") },
		"cut off":         func(s *store, _ string) { s.indexText(`{"manifests":[]`) },
		"no object":       func(s *store, _ string) { s.indexText("[]") },
		"no list":         func(s *store, _ string) { s.indexText(`{"manifests":{}}`) },
		"too large": func(s *store, _ string) {
			s.indexText(`{"x":"` + strings.Repeat("x", 2*maxEntry) + `","manifests":[]}`)
		},
		"a folder": func(_ *store, index string) { must(t, os.MkdirAll(index, 0o700)) },
		"a link": func(s *store, index string) {
			s.indexText("")
			must(t, os.Remove(index))
			must(t, os.Symlink(secret, index))
		},
		"a file in place of the store": func(s *store, index string) { must(t, os.WriteFile(filepath.Dir(index), nil, 0o600)) },
	} {
		s, image := withImage(t)
		change(s, filepath.Join(s.root, "artifacts", "index.json"))
		result := s.read(NewReader(s.root))
		if expect(t, name, result.Contents.Images, image); !result.Incomplete || result.Skipped[handover.NoArtifacts] != 1 {
			t.Errorf("%s: %+v", name, result)
		}
	}
}

// An artifact whose manifest cannot be used is listed by its names; one that is missing is waited for.
func TestUnusableArtifacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, image := withImage(t)
		r := NewReader(s.root)
		s.index(s.artifact("nonsense", "{")+" quay.io/nonsense:1", s.artifact("index", `{"manifests":[{"digest":"`+digest("x")+`"}]}`)+" quay.io/index:1",
			s.artifact("missing", "")+" quay.io/missing:1", s.artifact("many", manifestOf(slices.Repeat([]string{"a"}, 513)...))+" quay.io/many:1")
		want := []string{image, digest("nonsense") + " quay.io/nonsense:1 = ", digest("index") + " quay.io/index:1 = ", digest("many") + " quay.io/many:1 = "}
		result := s.read(r)
		if expect(t, "at first", result.Contents.Images, slices.Clone(want)...); !result.Incomplete || result.Skipped["manifest"] != 2 || result.Skipped["layers"] != 1 {
			t.Errorf("%+v", result)
		}
		time.Sleep(comes)
		result = s.read(r)
		if expect(t, "later", result.Contents.Images, append(want, digest("missing")+" quay.io/missing:1 = ")...); result.Incomplete || result.Skipped["manifest"] != 3 {
			t.Errorf("%+v", result)
		}
	})
}

func TestManyArtifacts(t *testing.T) {
	s, _ := withImage(t)
	var entries []string
	for i := range maxImages + 3 {
		entries = append(entries, fmt.Sprintf("%s quay.io/m:%d", digest(fmt.Sprint(i)), i))
	}
	s.index(entries...)
	if result := s.read(NewReader(s.root)); result.Skipped["too-many-images"] != 3 || !result.Incomplete {
		t.Errorf("skipped %v", result.Skipped)
	}
}

// An artifact that comes is noticed.
func TestWatchArtifacts(t *testing.T) {
	s, _ := withImage(t)
	s.index()
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan bool, 1000), make(chan error, 1)
	go func() { ended <- NewReader(s.root).Watch(ctx, func() { changes <- true }) }()
	<-changes // it begins
	s.index(digest("model"))
	must(t, poll.Until(t.Context(), 10*time.Millisecond, time.Minute, func(context.Context) error {
		if len(changes) == 0 {
			return fmt.Errorf("no change was noticed")
		}
		return nil
	}))
	cancel()
	<-ended
}

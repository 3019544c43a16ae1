package crio

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/agent/internal/limit"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// rootKey is where the child of TestMemory finds its store.
const rootKey = "TEST_STORE"

// A list of as many images and bytes as are read takes no more than the memory that the DaemonSet gives.
func TestMemory(t *testing.T) {
	if root := os.Getenv(rootKey); root != "" {
		r := NewReader(root)
		for range 3 {
			result, err := r.Read(t.Context())
			must(t, err)
			if spec := result.Contents.Spec(0, v1alpha1.MaxNodeListBytes); spec.TotalImages != maxImages || len(result.Skipped) > 0 {
				t.Fatalf("%d images, skipped %v", spec.TotalImages, result.Skipped)
			}
		}
		limit.Peak(t)
		return
	}
	if os.Getenv("FULL") == "" {
		t.Skip("takes ten seconds of a processor: FULL=1, as make test-all sets it")
	}
	const manifests, names = 500, 18
	s := newStore(t)
	for i := range maxImages {
		text := ""
		if i < manifests {
			var layers []string
			for l := range v1alpha1.MaxLayers {
				layers = append(layers, fmt.Sprint(i, "-", l))
			}
			text = manifestOf(layers...)
		}
		var tags []string
		for n := range names {
			tags = append(tags, fmt.Sprintf("quay.io/%s:%d-%d", strings.Repeat("a", 180), i, n))
		}
		s.add(fmt.Sprintf("image%d", i), text, tags...)
		s.images[i]["big-data-digests"] = map[string]string{"manifest": digest(fmt.Sprint("manifest", i%manifests))}
	}
	s.write()
	info, err := os.Stat(s.path("images.json"))
	must(t, err)
	if info.Size() < maxList*9/10 || info.Size() > maxList {
		t.Fatalf("the list has %d bytes", info.Size())
	}
	limit.Child(t, rootKey+"="+s.root)
}

// What is beyond a bound is refused with the way out; an image with a few thousand names is not.
func TestLargeLists(t *testing.T) {
	tags := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("quay.io/%s:%d", strings.Repeat("a", 100), i))
		}
		return names
	}
	s := newStore(t)
	s.add("aa", manifestOf("base"), tags(30_000)...)
	s.add("bb", manifestOf("base"), "quay.io/b:1")
	s.write()
	if result := s.read(NewReader(s.root)); len(result.Contents.Images) != 2 || len(result.Contents.Images[0].Names) != v1alpha1.MaxNodeImageNames {
		t.Errorf("%d images", len(result.Contents.Images))
	}
	for why, images := range map[string][][]string{
		"images.json: an image takes more than 4 MiB there: remove it": {tags(40_000)},
		"images.json: more than 64 MiB: remove images":                 slices.Repeat([][]string{tags(30_000)}, 21),
	} {
		s := newStore(t)
		for i, names := range images {
			s.add(fmt.Sprint("image", i), "", names...)
		}
		s.write()
		if _, err := NewReader(s.root).Read(t.Context()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %s", err, why)
		}
	}
}

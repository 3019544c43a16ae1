package manifest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// However many layers images have, so many are kept; when others leave, those that had no room are read
// again.
func TestKnown(t *testing.T) {
	var k *Known
	// read returns how many of the images were read, and of how many the layers are known.
	read := func(images ...int) (reads, whole int) {
		next := k.Next()
		for _, i := range images {
			digest := fmt.Sprint(i)
			m, known := next.Get(digest)
			if !known {
				reads++
				m = next.Put(digest, &Manifest{Config: "c", Layers: make([]v1alpha1.ImageLayer, MaxTotal/2-10)})
			}
			if len(m.Layers) > 0 {
				whole++
			} else if !errors.Is(m.Unknown, errTotal) || m.Config != "c" {
				t.Errorf("%+v", m)
			}
		}
		next.Done()
		k = next
		return reads, whole
	}
	for _, c := range []struct {
		images                 []int
		reads, whole, remember int
	}{
		{[]int{1, 2, 3, 4}, 4, 2, 4},
		{[]int{1, 2, 3, 4}, 0, 2, 4},
		{[]int{2, 3, 4}, 1, 2, 3},
		{[]int{4}, 1, 1, 1},
	} {
		if reads, whole := read(c.images...); reads != c.reads || whole != c.whole || k.Len() != c.remember {
			t.Errorf("%v: %d read, %d whole, %d known; want %+v", c.images, reads, whole, k.Len(), c)
		}
	}
	// Indexes and manifests without a digest take room, too; nil ones do not.
	k = k.Next()
	for _, m := range []*Manifest{{Manifests: make([]Entry, MaxTotal/2)}, {Config: "c", Layers: make([]v1alpha1.ImageLayer, MaxTotal/2)}} {
		if kept := k.Put("", m); kept != m || k.Len() > 0 {
			t.Errorf("%+v", kept)
		}
	}
	if kept := k.Put("a", &Manifest{Manifests: make([]Entry, 1)}); len(kept.Manifests) > 0 {
		t.Errorf("%+v", kept)
	}
	if k.Put("b", nil); k.Len() != 2 {
		t.Errorf("%d known", k.Len())
	}
	if m, known := k.Get("b"); m != nil || !known {
		t.Errorf("%+v, %t", m, known)
	}
}

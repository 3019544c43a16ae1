package imagelayers

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"go.podman.io/image/v5/types"
)

func TestExclusiveBytes(t *testing.T) {
	base := []StoredLayer{{ID: "base", Size: 100}, {ID: "middle", Parent: "base", Size: 20}}
	with := func(layers ...StoredLayer) []StoredLayer { return append(slices.Clone(base), layers...) }

	for name, tc := range map[string]struct {
		images []StoredImage
		layers []StoredLayer
		want   map[string]int64
	}{
		"nothing": {want: map[string]int64{}},
		"one image": {
			[]StoredImage{{ID: "a", Top: "middle"}}, base, map[string]int64{"a": 120},
		},
		"a common base": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "b", Top: "b1"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "b1", Parent: "base", Size: 5}),
			map[string]int64{"a": 23, "b": 5},
		},
		"the base is an image, too": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "base", Top: "middle"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}),
			map[string]int64{"a": 3, "base": 0},
		},
		"the same layers": {
			[]StoredImage{{ID: "a", Top: "middle"}, {ID: "b", Top: "middle"}}, base, map[string]int64{"a": 0, "b": 0},
		},
		"a container, or a pull that goes on": {
			[]StoredImage{{ID: "a", Top: "a1"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "other", Parent: "base", Size: 1}),
			map[string]int64{"a": 23},
		},
		"a container of the image itself": {
			[]StoredImage{{ID: "a", Top: "a1"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "container", Parent: "a1", Size: 1}),
			map[string]int64{"a": 0},
		},
		"no layers": {
			[]StoredImage{{ID: "artifact"}, {ID: "a", Top: "middle"}}, base, map[string]int64{"artifact": 0, "a": 120},
		},
		"two without layers": {
			[]StoredImage{{ID: "artifact"}, {ID: "artifact2"}}, base, map[string]int64{"artifact": 0, "artifact2": 0},
		},
		"a layer that is not there": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "b", Top: "missing"}},
			[]StoredLayer{{ID: "a1", Parent: "missing", Size: 3}},
			map[string]int64{"a": 3, "b": 0},
		},
		"a size that is not known": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "b", Top: "b1"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: -1}, StoredLayer{ID: "b1", Parent: "middle", Size: 5}),
			map[string]int64{"b": 5},
		},
		"a size that is not known, of what stays": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "b", Top: "b1"}},
			[]StoredLayer{{ID: "base", Parent: "", Size: -1}, {ID: "a1", Parent: "base", Size: 3}, {ID: "b1", Parent: "base", Size: 5}},
			map[string]int64{"a": 3, "b": 5},
		},
		"copies for user namespaces": {
			[]StoredImage{{ID: "a", Top: "a1", MappedTops: []string{"m1", "m2", "missing"}}, {ID: "b", Top: "base"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "m1", Parent: "middle", Size: 3}, StoredLayer{ID: "m2", Parent: "middle", Size: 3}),
			map[string]int64{"a": 29, "b": 0},
		},
		"a container on such a copy": {
			[]StoredImage{{ID: "a", Top: "a1", MappedTops: []string{"m1"}}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "m1", Parent: "middle", Size: 3}, StoredLayer{ID: "container", Parent: "m1", Size: 1}),
			map[string]int64{"a": 3},
		},
		"a store that cannot be written": {
			[]StoredImage{{ID: "a", Top: "middle", ReadOnly: true}, {ID: "b", Top: "b1"}, {ID: "c", Top: "c1", ReadOnly: true}},
			[]StoredLayer{
				{ID: "base", Size: 100, ReadOnly: true}, {ID: "middle", Parent: "base", Size: 20, ReadOnly: true},
				{ID: "b1", Parent: "middle", Size: 3}, {ID: "c1", Parent: "b1", Size: 5, ReadOnly: true},
			},
			map[string]int64{"a": 0, "b": 3, "c": 0},
		},
		"the same in both": {
			[]StoredImage{{ID: "a", Top: "middle"}, {ID: "b", Top: "b1"}, {ID: "a", Top: "middle", ReadOnly: true}, {ID: "b", Top: "b1", ReadOnly: true}},
			append(with(StoredLayer{ID: "b1", Size: -1}), StoredLayer{ID: "base", Size: 100, ReadOnly: true}, StoredLayer{ID: "middle", Parent: "base", Size: 20, ReadOnly: true}),
			map[string]int64{"a": 120},
		},
		"in two stores that can be written": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "b", Top: "base"}, {ID: "a", Top: "a1", MappedTops: []string{"m1"}}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "m1", Parent: "middle", Size: 3}),
			map[string]int64{"a": 26, "b": 0},
		},
		"in two such stores, with other layers": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "a", Top: "a2"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "a2", Parent: "middle", Size: 5}),
			map[string]int64{"a": 128},
		},
		"in two such stores, and above another image": {
			[]StoredImage{{ID: "a", Top: "a1"}, {ID: "a", Top: "a1"}, {ID: "b", Top: "b1"}},
			with(StoredLayer{ID: "a1", Parent: "middle", Size: 3}, StoredLayer{ID: "b1", Parent: "a1", Size: 5}),
			map[string]int64{"a": 0, "b": 5},
		},
		"in both, with other layers": {
			[]StoredImage{{ID: "a", Top: "middle"}, {ID: "a", Top: "elsewhere", ReadOnly: true}},
			with(StoredLayer{ID: "elsewhere", Size: 7, ReadOnly: true}),
			map[string]int64{"a": 120},
		},
		"a ring": {
			[]StoredImage{{ID: "a", Top: "one"}, {ID: "b", Top: "on it"}, {ID: "c", Top: "itself"}},
			[]StoredLayer{{ID: "one", Parent: "two", Size: 1}, {ID: "two", Parent: "one", Size: 2}, {ID: "on it", Parent: "two", Size: 4}, {ID: "itself", Parent: "itself", Size: 8}},
			map[string]int64{"a": 0, "b": 4, "c": 0},
		},
	} {
		if got := ExclusiveBytes(tc.images, tc.layers); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestExclusiveBytesAreFreed removes images one after another, in any order: the
// exclusive bytes of each are those that its removal frees.
func TestExclusiveBytesAreFreed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test that can be repeated

	for range 500 {
		var layers []StoredLayer

		var images []StoredImage

		for i := range 1 + random.IntN(20) {
			layer := StoredLayer{ID: strconv.Itoa(i), Size: random.Int64N(100)}
			if i > 0 && random.IntN(4) > 0 {
				layer.Parent = strconv.Itoa(random.IntN(i))
			}

			layers = append(layers, layer)
		}

		for i := range 1 + random.IntN(8) {
			images = append(images, StoredImage{ID: strconv.Itoa(i), Top: layers[random.IntN(len(layers))].ID})
		}

		// As nothing else is in the store.
		layers = neededBy(images, layers)
		all := size(layers)

		for len(images) > 0 {
			i := random.IntN(len(images))
			freed := ExclusiveBytes(images, layers)[images[i].ID]
			images = slices.Delete(images, i, i+1)
			left := neededBy(images, layers)

			if gone := size(layers) - size(left); gone != freed {
				t.Fatalf("%d bytes were exclusive, %d went", freed, gone)
			}

			layers = left

			all -= freed
		}

		if all != 0 {
			t.Fatalf("%d bytes are left", all)
		}
	}
}

func size(layers []StoredLayer) (sum int64) {
	for _, layer := range layers {
		sum += layer.Size
	}

	return sum
}

// neededBy returns the layers that any of the images has.
func neededBy(images []StoredImage, layers []StoredLayer) (needed []StoredLayer) {
	ids := map[string]bool{}

	for _, image := range images {
		for id := image.Top; id != ""; {
			ids[id] = true
			i := slices.IndexFunc(layers, func(l StoredLayer) bool { return l.ID == id })
			id = layers[i].Parent
		}
	}

	for _, layer := range layers {
		if ids[layer.ID] {
			needed = append(needed, layer)
		}
	}

	return needed
}

func TestWithExclusive(t *testing.T) {
	layers := FromManifest([]types.BlobInfo{blob(digestA, 10)})
	before := layers.Spec().GetAnnotations()

	var last *Layers

	for i, bytes := range []int64{5, 5, 12, 0} {
		stated := layers.WithExclusive(bytes)
		value := strconv.FormatInt(bytes, 10)

		if want := map[string]string{key(digestA): "10", ExclusiveKey: value}; !maps.Equal(stated.Spec().GetAnnotations(), want) {
			t.Errorf("%v, want %v", stated.Spec().GetAnnotations(), want)
		}

		if want := i == 1; (stated == last) != want {
			t.Errorf("%d bytes: the same value is %v, want %v", bytes, stated == last, want)
		}

		last = stated
	}

	if want := map[string]string{key(digestA): "10"}; !maps.Equal(before, want) || !maps.Equal(layers.Spec().GetAnnotations(), want) {
		t.Errorf("the layers changed to %v", before)
	}

	var none *Layers
	if got, want := none.WithExclusive(3).Spec().GetAnnotations(), map[string]string{ExclusiveKey: "3"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}

	if got := none.Merge(map[string]string{ExclusiveKey: "1", "IMAGEexclusivebytes": "2", "\u0130mageExclusiveBytes": "3"}); got != nil {
		t.Errorf("an image sets what it frees: %v", got)
	}
}

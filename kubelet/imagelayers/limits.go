/*
Copyright The Kubernetes Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package imagelayers

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"
	"strings"
)

// Defaults of Limits.
const (
	// DefaultMinBytes leaves out what costs nothing to download. In public
	// images the layers of at least 1 MiB are less than half of all layers and
	// hold more than 99.7 % of all bytes.
	DefaultMinBytes = 1 << 20
	// DefaultMaxPerImage keeps one odd image from pushing out the layers of
	// all others. Public images have at most a dozen layers of DefaultMinBytes.
	DefaultMaxPerImage = 64
	// DefaultMaxNodeBytes bounds what layers add to a Node: about 800 layers.
	DefaultMaxNodeBytes = 64 << 10
)

// MaxNodeBytes is the highest value of Limits.MaxNodeBytes: a sixth of what
// etcd stores in one object by default.
const MaxNodeBytes = 256 << 10

// Limits decide which layers are worth their place in a Node.
type Limits struct {
	// MinBytes is the smallest compressed size of a layer that is reported.
	MinBytes int64
	// MaxPerImage is the most layers reported of one image, 0 to
	// MaxLayersPerImage. The smallest are left out, of that image only.
	MaxPerImage int
	// MaxNodeBytes is the most by which layers may enlarge the protobuf
	// encoding of a Node, 0 to the constant of that name. The smallest
	// layers are left out, of all images that have them.
	MaxNodeBytes int
}

// Select returns the layers to report, for each image those of its layers that
// are within the limits, sorted by digest. The outcome depends on nothing but
// the layers and the limits, and a layer that stays is not affected by which
// smaller ones come and go: an unchanged node never causes a write, and a
// changed image list changes as little as possible.
//
// A digest that does not fit the node is left out of every image, so that an
// image's list never depends on its position. One digest with several sizes,
// which no honest registry serves, counts as the largest of them.
func (l Limits) Select(images [][]Layer) [][]Layer {
	selected := make([][]Layer, len(images))
	for i, layers := range images {
		selected[i] = l.selectImage(layers)
	}
	if EncodedSize(selected) <= l.MaxNodeBytes {
		return selected
	}
	// Leaving out more never enlarges the result, so the fewest smallest
	// digests to leave out can be found by bisection.
	rank := ranks(selected)
	dropped := sort.Search(len(rank), func(n int) bool {
		return EncodedSize(dropRanksBelow(selected, rank, n)) <= l.MaxNodeBytes
	})
	return dropRanksBelow(selected, rank, dropped)
}

func (l Limits) selectImage(layers []Layer) []Layer {
	var selected []Layer
	for _, layer := range layers {
		if layer.SizeBytes >= l.MinBytes {
			selected = append(selected, layer)
		}
	}
	if len(selected) > l.MaxPerImage {
		slices.SortFunc(selected, bySize)
		selected = selected[len(selected)-l.MaxPerImage:]
	}
	slices.SortFunc(selected, byDigest)
	return selected
}

// ranks numbers all digests from the smallest layer to the largest.
func ranks(images [][]Layer) map[string]int {
	sizes := map[string]int64{}
	for _, layers := range images {
		for _, layer := range layers {
			sizes[layer.Digest] = max(sizes[layer.Digest], layer.SizeBytes)
		}
	}
	ordered := make([]Layer, 0, len(sizes))
	for digest, size := range sizes {
		ordered = append(ordered, Layer{digest, size})
	}
	slices.SortFunc(ordered, bySize)
	rank := make(map[string]int, len(ordered))
	for i, layer := range ordered {
		rank[layer.Digest] = i
	}
	return rank
}

func dropRanksBelow(images [][]Layer, rank map[string]int, n int) [][]Layer {
	kept := make([][]Layer, len(images))
	for i, layers := range images {
		for _, layer := range layers {
			if rank[layer.Digest] >= n {
				kept[i] = append(kept[i], layer)
			}
		}
	}
	return kept
}

func bySize(a, b Layer) int {
	return cmp.Or(cmp.Compare(a.SizeBytes, b.SizeBytes), strings.Compare(a.Digest, b.Digest))
}

// EncodedSize returns by how many bytes the layers enlarge the protobuf
// encoding of a Node, as the API server stores it. Layers are field 1001 of an
// image, made of a digest (field 1) and a size (field 2). Exact but for the
// length prefixes of the images and of what encloses them, which layers may
// push from one to more bytes: those are counted as if they did.
func EncodedSize(images [][]Layer) int {
	var status int
	for _, layers := range images {
		var image int
		for _, layer := range layers {
			image += layerSize(layer)
		}
		status += image + prefixGrowth(image)
	}
	node := status + prefixGrowth(status)
	return node + prefixGrowth(node)
}

func layerSize(l Layer) int {
	const tag, imageLayersTag = 1, 2
	digest := tag + varintSize(uint64(len(l.Digest))) + len(l.Digest)
	size := tag + varintSize(uint64(l.SizeBytes))
	return imageLayersTag + varintSize(uint64(digest+size)) + digest + size
}

// prefixGrowth is the most by which the length prefix of a message grows when
// n bytes are added to the message. No message gains more than the longest one
// that still has a prefix of a single byte.
func prefixGrowth(n int) int {
	const longest = 1<<7 - 1
	return varintSize(uint64(longest+n)) - varintSize(longest)
}

func varintSize(x uint64) int { return (bits.Len64(x|1) + 6) / 7 }

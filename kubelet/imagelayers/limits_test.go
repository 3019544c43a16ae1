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
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var unlimited = Limits{MaxPerImage: MaxLayersPerImage, MaxNodeBytes: MaxNodeBytes}

func TestSelectImage(t *testing.T) {
	a, b, c, d := Layer{sha(1), 10}, Layer{sha(2), 30}, Layer{sha(3), 20}, Layer{sha(4), 20}
	for name, tc := range map[string]struct {
		limits func(*Limits)
		images [][]Layer
		want   [][]Layer
	}{
		"no images":       {nil, nil, [][]Layer{}},
		"no layers":       {nil, [][]Layer{nil, {}}, [][]Layer{nil, nil}},
		"everything fits": {nil, [][]Layer{{a, b}, {c}}, [][]Layer{{a, b}, {c}}},
		"sorts by digest": {nil, [][]Layer{{c, a, b}}, [][]Layer{{a, b, c}}},
		"minimum is included": {func(l *Limits) { l.MinBytes = 20 },
			[][]Layer{{a, b, c}}, [][]Layer{{b, c}}},
		"largest of an image, ties by digest": {func(l *Limits) { l.MaxPerImage = 2 },
			[][]Layer{{a, b, c, d}}, [][]Layer{{b, d}}},
		"the limit of an image is no matter of others": {func(l *Limits) { l.MaxPerImage = 1 },
			[][]Layer{{a, b}, {a}}, [][]Layer{{b}, {a}}},
		"no layers per image": {func(l *Limits) { l.MaxPerImage = 0 },
			[][]Layer{{a, b}}, [][]Layer{nil}},
		"no bytes per node": {func(l *Limits) { l.MaxNodeBytes = 0 },
			[][]Layer{{a, b}}, [][]Layer{nil}},
		"smallest of the node first, in every image": {func(l *Limits) { l.MaxNodeBytes = EncodedSize([][]Layer{{b, c}, {c}}) },
			[][]Layer{{a, b, c}, {a, c}}, [][]Layer{{b, c}, {c}}},
		"one byte too many": {func(l *Limits) { l.MaxNodeBytes = EncodedSize([][]Layer{{b, c}, {c}}) - 1 },
			[][]Layer{{a, b, c}, {a, c}}, [][]Layer{{b}, nil}},
		"ties of the node by digest": {func(l *Limits) { l.MaxNodeBytes = EncodedSize([][]Layer{{d}}) },
			[][]Layer{{c}, {d}}, [][]Layer{nil, {d}}},
		"a digest counts with its largest size": {func(l *Limits) { l.MaxNodeBytes = EncodedSize([][]Layer{{b}, {{b.Digest, 1}}}) },
			[][]Layer{{b}, {{b.Digest, 1}, c}}, [][]Layer{{b}, {{b.Digest, 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			limits := unlimited
			if tc.limits != nil {
				tc.limits(&limits)
			}
			got := limits.Select(tc.images)
			if len(got) != len(tc.want) {
				t.Fatalf("got %d images, want %d", len(got), len(tc.want))
			}
			for i := range got {
				if !slices.Equal(got[i], tc.want[i]) {
					t.Errorf("image %d: got %v, want %v", i, got[i], tc.want[i])
				}
			}
		})
	}
}

// randomImages returns images with layers from one pool, so that some share.
func randomImages(r *rand.Rand, images, layersPerImage, pool int) [][]Layer {
	all := make([][]Layer, images)
	for i := range all {
		used := map[int]bool{}
		for range r.IntN(layersPerImage + 1) {
			if n := r.IntN(pool); !used[n] {
				used[n] = true
				// Sizes repeat, so that ties occur.
				all[i] = append(all[i], Layer{sha(n), int64(n % 97 * (1 << (n % 40)))})
			}
		}
	}
	return all
}

func clone(images [][]Layer) [][]Layer {
	c := make([][]Layer, len(images))
	for i := range images {
		c[i] = slices.Clone(images[i])
	}
	return c
}

func TestSelectProperties(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			images := randomImages(r, 1+r.IntN(60), 1+r.IntN(40), 1+r.IntN(2000))
			limits := Limits{MinBytes: int64(r.IntN(1000)), MaxPerImage: r.IntN(50), MaxNodeBytes: r.IntN(40 << 10)}
			before := clone(images)
			got := limits.Select(images)
			if !reflect.DeepEqual(images, before) {
				t.Fatal("changed its input")
			}
			if size := EncodedSize(got); size > limits.MaxNodeBytes {
				t.Errorf("%d bytes, at most %d allowed", size, limits.MaxNodeBytes)
			}

			// The order of neither layers nor images matters.
			order := r.Perm(len(images))
			shuffled := make([][]Layer, len(images))
			for i, from := range order {
				shuffled[i] = slices.Clone(images[from])
				r.Shuffle(len(shuffled[i]), func(a, b int) {
					shuffled[i][a], shuffled[i][b] = shuffled[i][b], shuffled[i][a]
				})
			}
			for i, layers := range limits.Select(shuffled) {
				if !slices.Equal(layers, got[order[i]]) {
					t.Errorf("image %d: %v after shuffling, %v before", order[i], layers, got[order[i]])
				}
			}

			// What is selected stays so when only that is offered.
			for i, layers := range limits.Select(got) {
				if !slices.Equal(layers, got[i]) {
					t.Errorf("image %d: %v selected from %v", i, layers, got[i])
				}
			}

			// A digest that fits within its images is reported of all or none,
			// and nothing is left out that is larger than what is reported.
			withoutNodeLimit := limits
			withoutNodeLimit.MaxNodeBytes = 1 << 30
			candidates := withoutNodeLimit.Select(images)
			kept := map[string]bool{}
			for _, layers := range got {
				for _, l := range layers {
					kept[l.Digest] = true
				}
			}
			var largestDropped, smallestKept *Layer
			for i, layers := range candidates {
				for _, l := range layers {
					if kept[l.Digest] != slices.Contains(got[i], l) {
						t.Errorf("image %d: %v is reported of some images only", i, l)
					}
					if kept[l.Digest] && (smallestKept == nil || bySize(l, *smallestKept) < 0) {
						smallestKept = &l
					}
					if !kept[l.Digest] && (largestDropped == nil || bySize(l, *largestDropped) > 0) {
						largestDropped = &l
					}
				}
			}
			if largestDropped != nil && smallestKept != nil && bySize(*largestDropped, *smallestKept) > 0 {
				t.Errorf("dropped %v, kept %v", *largestDropped, *smallestKept)
			}
			// Nothing is left out for nothing.
			if largestDropped != nil {
				for i, layers := range candidates {
					for _, l := range layers {
						if l.Digest == largestDropped.Digest {
							got[i] = append(got[i], l)
						}
					}
				}
				if size := EncodedSize(got); size <= limits.MaxNodeBytes {
					t.Errorf("%v was dropped, but fits: %d bytes of %d", *largestDropped, size, limits.MaxNodeBytes)
				}
			}
		})
	}
}

// The documentation of the kubelet's configuration states these numbers.
func TestDefaults(t *testing.T) {
	got := []int{DefaultMinBytes, DefaultMaxPerImage, DefaultMaxNodeBytes, MaxLayersPerImage, MaxNodeBytes}
	if want := []int{1048576, 64, 65536, 512, 262144}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if RetryInterval != 10*time.Minute {
		t.Errorf("retries after %s", RetryInterval)
	}
}

func TestEncodedSize(t *testing.T) {
	// 2 bytes of tag and 1 of length; digest: 1+1+71; size: 1+1 up to 127.
	const layer = 2 + 1 + 73 + 2
	for name, tc := range map[string]struct {
		images [][]Layer
		want   int
	}{
		"nothing":            {nil, 0},
		"no layers":          {[][]Layer{nil, {}}, 0},
		"one":                {[][]Layer{{{sha(1), 1}}}, layer + 3},
		"larger size":        {[][]Layer{{{sha(1), 1 << 20}}}, layer + 2 + 3},
		"largest size":       {[][]Layer{{{sha(1), 1<<63 - 1}}}, layer + 8 + 3},
		"two in one image":   {[][]Layer{{{sha(1), 1}, {sha(2), 1}}}, 2*layer + 3},
		"two in two images":  {[][]Layer{{{sha(1), 1}}, {{sha(2), 1}}}, 2*layer + 4},
		"long digest":        {[][]Layer{{{"sha512:" + fmt.Sprintf("%0128d", 0), 1}}}, 2 + 2 + (1 + 2 + 135) + 2 + 3},
		"layer of 128 bytes": {[][]Layer{{{strings.Repeat("a", 122), 1 << 20}}}, 2 + 2 + 124 + 4 + 3},
		"layer of 127 bytes": {[][]Layer{{{strings.Repeat("a", 121), 1 << 20}}}, 2 + 1 + 123 + 4 + 3},
		"prefix of 3 bytes":  {[][]Layer{slices.Repeat([]Layer{{sha(1), 1}}, 209)}, 209*layer + 6},
		"prefix of 2 bytes":  {[][]Layer{slices.Repeat([]Layer{{sha(1), 1}}, 208)}, 208*layer + 3},
		"an image without":   {[][]Layer{{{sha(1), 1}}, nil}, layer + 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := EncodedSize(tc.images); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

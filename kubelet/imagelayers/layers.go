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

// Package imagelayers decides which layers of which images a kubelet reports
// in the status of its Node.
//
// A container runtime describes the layers of an image by annotations
// (Parse). A Node has to stay small, so only the layers worth their place are
// reported (Limits.Select). An API server may not keep what it is sent, and a
// kubelet that insisted would rewrite its Node every few seconds (Guard).
//
// The package does not use the API types: it is the part of the change to the
// kubelet that does not depend on the change to the API.
package imagelayers

import (
	// The digest algorithms that digest.Parse accepts are those linked in.
	_ "crypto/sha256"
	_ "crypto/sha512"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// AnnotationPrefix starts the name of an image annotation that describes one
// layer: the rest of the name is the layer's digest, the value its compressed
// size in bytes as a decimal number.
const AnnotationPrefix = "imageLayer."

// MaxLayersPerImage is the most layers that are read from the annotations of
// one image. Runtimes report no more than that, and neither does the API
// accept more.
const MaxLayersPerImage = 512

// Layer is one layer of an image as a registry transfers it.
type Layer struct {
	// Digest of the compressed layer, for example "sha256:<64 hex digits>".
	Digest string
	// SizeBytes is the size of the compressed layer.
	SizeBytes int64
}

// Parse returns the layers that an image's annotations describe, sorted by
// digest. Annotations of other kinds are skipped, and so are those whose
// digest or size is not valid: what a runtime reports of an image must not keep
// the kubelet from reporting it. At most MaxLayersPerImage layers are
// returned, the first of those in the order of the annotations.
func Parse(annotations iter.Seq2[string, string]) []Layer {
	var layers []Layer
	for name, value := range annotations {
		if len(layers) == MaxLayersPerImage {
			break
		}
		if layer, ok := parse(name, value); ok {
			layers = append(layers, layer)
		}
	}
	slices.SortStableFunc(layers, byDigest)
	// A runtime hands over a map, so no name repeats; a caller's list may.
	return slices.CompactFunc(layers, func(a, b Layer) bool { return a.Digest == b.Digest })
}

func parse(name, value string) (Layer, bool) {
	rest, ok := strings.CutPrefix(name, AnnotationPrefix)
	if !ok {
		return Layer{}, false
	}
	d, err := digest.Parse(rest)
	if err != nil {
		return Layer{}, false
	}
	// ParseUint, unlike ParseInt, accepts no sign.
	size, err := strconv.ParseUint(value, 10, 63)
	if err != nil {
		return Layer{}, false
	}
	return Layer{Digest: d.String(), SizeBytes: int64(size)}, true
}

func byDigest(a, b Layer) int { return strings.Compare(a.Digest, b.Digest) }

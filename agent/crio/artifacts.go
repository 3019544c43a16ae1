package crio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/agent/read"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// CRI-O 1.33 and later lists OCI artifacts to the kubelet beside images, as Artifact.CRIImage describes them: with their
// tag, if the name has one, and the digest of the manifest (github.com/cri-o/cri-o v1.36.3, internal/ociartifact,
// Store.List). Additional stores come first; of several artifacts with a name the first counts. A store is an OCI layout
// in this folder below the root, with the names in the annotations of its index (NewStore there; getArtifacts in
// go.podman.io/common/pkg/libartifact).
const (
	artifactFolder = "artifacts"
	indexFile      = "index.json"
	// nameKey is the annotation with the name. An older artifact of a name stays without one, and so do its blobs.
	nameKey = "org.opencontainers.image.ref.name"
)

// artifactEntry is an entry of an index of artifacts.
type artifactEntry struct {
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// artifact is an artifact with all its names.
type artifact struct {
	digest string
	names  []string
	root   *os.Root
}

// readArtifacts reads the artifacts of all stores. An index that cannot be read costs no image: CRI-O lists these without
// artifacts then (Server.listImages). It is not replaced as a whole, so it is read again soon.
func (r *Reader) readArtifacts(ctx context.Context, now *reading) error {
	all, named := map[string]*artifact{}, map[string]bool{}
	var order []*artifact
	for _, path := range slices.Concat(r.roots[1:], r.roots[:1]) {
		root, err := os.OpenRoot(filepath.Join(path, artifactFolder))
		if err == nil {
			defer root.Close()
			if gone(root) {
				return read.ErrGone
			}
			err = list(root, indexFile, "manifests", func(entry *artifactEntry) error {
				name := entry.Annotations[nameKey]
				if !v1alpha1.IsDigest(entry.Digest) || name != "" && named[name] {
					return ctx.Err()
				}
				found := all[entry.Digest]
				if found == nil {
					if len(order) >= maxImages {
						now.Skip(handover.TooManyImages, 1)
						return ctx.Err()
					}
					found = &artifact{entry.Digest, []string{entry.Digest}, root}
					order, all[entry.Digest] = append(order, found), found
				}
				if isTagged(name) && len(named) < maxImages {
					named[name], found.names = true, append(found.names, name)
				}
				return ctx.Err()
			})
		}
		if ctx.Err() != nil {
			return fmt.Errorf("artifacts of %s: %w", path, ctx.Err())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			now.Skip(handover.NoArtifacts, 1)
			now.Incomplete = true
		}
	}
	for _, found := range order {
		algorithm, encoded, _ := strings.Cut(found.digest, ":")
		r.add(found.root, found.digest, filepath.Join("blobs", algorithm, encoded), found.digest, found.names, now)
	}
	return nil
}

// isTagged reports whether a name has a tag, and can be listed.
func isTagged(name string) bool {
	last := name[strings.LastIndex(name, "/")+1:]
	return strings.Contains(last, ":") && !strings.Contains(last, "@") && v1alpha1.IsNodeImageName(name)
}

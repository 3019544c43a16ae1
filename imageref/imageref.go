// Package imageref makes image names comparable. A pod names "busybox"; the node
// that holds the image reports "docker.io/library/busybox:latest" and
// "docker.io/library/busybox@sha256:...". All of them must match. Scheduler and
// resolver both use this package, so that they use the same name for the same
// image.
package imageref

import (
	"errors"
	"fmt"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// MaxLength is how many characters a name may have, as in the schema of
// ImageManifest: a repository has at most 255, a tag 128, a digest less than 256.
const MaxLength = 1024

// Canonical is a name that can be compared: "docker.io/library/busybox:latest"
// for a tag. For a digest it is the digest alone ("sha256:..."), because a digest
// names the same content in every repository.
type Canonical string

// Parse returns the canonical form of a name without applying short-name rules,
// as for the names in NodeStatus.
func Parse(name string) (Canonical, error) {
	if err := checkLength(name); err != nil {
		return "", fmt.Errorf("image name of %w", err)
	}
	named, err := Full(name)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w", name, err)
	}
	return canonical(named), nil
}

func canonical(named reference.Named) Canonical {
	if digested, ok := named.(reference.Digested); ok {
		return Canonical(digested.Digest().String())
	}
	return Canonical(named.String())
}

// Full returns a name with its registry and with either a tag or a digest. A name
// without registry belongs to docker.io, and a name without tag and digest gets
// the tag latest. If there are both, the digest counts, as in every container
// runtime.
func Full(name string) (reference.Named, error) {
	if err := checkLength(name); err != nil {
		return nil, err
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, err
	}
	digested, ok := named.(reference.Digested)
	if !ok {
		return reference.TagNameOnly(named), nil
	}
	if err := ValidateDigest(digested.Digest()); err != nil {
		return nil, err
	}
	return reference.WithDigest(reference.TrimNamed(named), digested.Digest())
}

// ValidateDigest returns why a digest is not valid for images. Valid ones are
// sha256 or sha512, which the OCI image specification registers. The message does
// not repeat the digest.
func ValidateDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return errors.New("no valid digest")
	}
	if d.Algorithm() != digest.SHA256 && d.Algorithm() != digest.SHA512 {
		return errors.New("digest is neither sha256 nor sha512")
	}
	return nil
}

func checkLength(name string) error {
	if len(name) > MaxLength {
		return fmt.Errorf("more than %d characters", MaxLength)
	}
	return nil
}

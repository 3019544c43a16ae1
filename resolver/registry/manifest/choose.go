package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	podman "go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/ocimanifest"
)

// Containerd after a platform means that containerd's choice among the manifests of an
// index counts, and not CRI-O's: CRI-O takes the first one with zstd layers, containerd the
// first.
const Containerd = "+containerd"

// Choice is an entry of an index, and the platform it is for.
type Choice struct {
	Digest   digest.Digest
	Platform string
	// Nested is what to choose with if the entry is an index itself: containerd follows it, CRI-O pulls nothing then.
	// Empty if only CRI-O takes the entry.
	Nested []string
}

// PlatformNotFound is the error of an index without a manifest for any of the platforms.
type PlatformNotFound struct {
	platforms string
	entries   int
}

func (e *PlatformNotFound) Error() string {
	return fmt.Sprintf("no manifest for the nodes' platforms (%s) among the %d of the index", e.platforms, e.entries)
}

var errUnreadable = errors.New("an index that container runtimes cannot read")

// Choose returns the manifests of an index for platforms ("linux/amd64", or that with
// Containerd), without duplicates.
func (c *Content) Choose(wanted []string) ([]Choice, error) {
	var chosen []Choice
	for _, text := range wanted {
		platform, containerd := strings.CutSuffix(text, Containerd)
		node, err := v1.ParsePlatform(platform)
		if err != nil || node.OS == "" || node.Architecture == "" {
			continue
		}
		take := c.crio
		if containerd {
			take = c.containerd
		}
		found, err := take(node)
		if err != nil {
			return nil, err
		}
		if found == "" {
			continue
		}
		if err := imageref.ValidateDigest(found); err != nil {
			return nil, fmt.Errorf("the index's manifest for %s: %w", platform, err)
		}
		at := slices.IndexFunc(chosen, func(other Choice) bool { return other.Digest == found })
		if at < 0 {
			at = len(chosen)
			node.Variant = c.variant(found, node)
			chosen = append(chosen, Choice{Digest: found, Platform: node.String()})
		}
		if containerd {
			chosen[at].Nested = append(chosen[at].Nested, text)
		}
	}
	if len(chosen) == 0 {
		return nil, &PlatformNotFound{strings.Join(wanted, ", "), len(c.entries)}
	}
	return chosen, nil
}

// variant returns the variant of a node's architecture that an index states for a manifest, where
// the node takes it. An author may list the manifest with others: these do not count.
func (c *Content) variant(chosen digest.Digest, node *v1.Platform) string {
	matcher := matcherOf(node)
	for i := range c.entries {
		entry := &c.entries[i]
		if p := entry.Platform; digest.Digest(entry.Digest) == chosen && p != nil && p.OS == node.OS && p.Architecture == node.Architecture &&
			matcher.Match(ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}) {
			return p.Variant
		}
	}
	return ""
}

// matcherOf matches what a node of this platform runs.
func matcherOf(node *v1.Platform) platforms.MatchComparer {
	return platforms.Only(ocispec.Platform{OS: node.OS, Architecture: node.Architecture, Variant: newest(node)})
}

// newest returns the variant of a node's architecture. Nodes do not report it: an arm node
// counts as v7, which is the usual one.
func newest(node *v1.Platform) string {
	switch {
	case node.Variant != "":
		return node.Variant
	case node.Architecture == "arm":
		return "v7"
	case node.Architecture == "arm64":
		return "v8"
	}
	return ""
}

// crio returns the digest of the manifest that CRI-O takes on a node; empty if there is
// none. It asks the library that CRI-O pulls with.
func (c *Content) crio(node *v1.Platform) (digest.Digest, error) {
	list, err := podman.ListFromBlob(c.body, string(c.mediaType))
	if err != nil {
		return "", errUnreadable
	}
	system := &types.SystemContext{OSChoice: node.OS, ArchitectureChoice: node.Architecture, VariantChoice: newest(node)}
	found, err := list.ChooseInstance(system)
	if err != nil {
		return "", nil //nolint:nilerr // the library's only error is that there is none
	}
	return found, nil
}

// containerd returns the digest of the manifest that containerd takes on a node; empty if
// there is none.
func (c *Content) containerd(node *v1.Platform) (digest.Digest, error) {
	var index ocispec.Index
	if err := json.Unmarshal(c.body, &index); err != nil {
		return "", errUnreadable
	}
	of := make([]*ocispec.Platform, len(index.Manifests))
	for i := range index.Manifests {
		of[i] = index.Manifests[i].Platform
	}
	taken := ocimanifest.ContainerdTakes(of, matcherOf(node))
	if taken < 0 {
		return "", nil
	}
	return index.Manifests[taken].Digest, nil
}

// Package collect finds out the layers of images, from a cluster and from
// registries, and writes them as a data set for evaluations
// (lab/eval/dataset).
package collect

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"go.podman.io/storage/pkg/ioutils"
	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/resolver/inspect"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// ReadNames reads image names, one per line. It skips empty lines and lines
// that begin with #.
func ReadNames(r io.Reader) ([]string, error) {
	var found []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			found = append(found, line)
		}
	}
	return found, lines.Err()
}

// CheckOutput returns an error if Write could not write a file with that name
// because it is a device or a folder. So the caller can fail early.
func CheckOutput(name string) error {
	if info, err := os.Stat(name); name != "-" && err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: write to standard output (-) instead", name)
	}
	return nil
}

// Write writes the images to a file. If it fails, the file is as it was before.
// The file is compressed if its name ends in .gz; - is standard output. The
// same images give the same file.
func Write(stdout io.Writer, name string, images []dataset.Image) error {
	if name == "-" {
		return dataset.Write(stdout, images)
	}
	var content bytes.Buffer
	if !strings.HasSuffix(name, ".gz") {
		if err := dataset.Write(&content, images); err != nil {
			return err
		}
	} else {
		compressed := gzip.NewWriter(&content) // no timestamp, so that the same images give the same file
		if err := errors.Join(dataset.Write(compressed, images), compressed.Close()); err != nil {
			return err
		}
	}
	return ioutils.AtomicWriteFile(name, content.Bytes(), 0o644)
}

// Config defines how images are looked up.
type Config struct {
	Client *inspect.Client
	// Platform to look for in an index, os/architecture.
	Platform string
	// Progress is called after each image, one call after another; nil means not.
	Progress func(done, all int)
}

// Result is the outcome of Images.
type Result struct {
	// Images in the order of names.
	Images []dataset.Image
	// Asked is the number of images for which registries were asked.
	Asked int
	// Errs has one error for each missing image, sorted by text.
	Errs []error
}

// Images looks up each image of an inventory once: in the ImageManifests of the
// inventory if they have it, otherwise in a registry. If the context ends, the
// remaining images are missing without an error.
func Images(ctx context.Context, config Config, found inspect.Inventory) Result {
	c := &collector{Config: config, known: map[string]string{}, manifests: map[string]*manifest{}, limited: map[string]bool{}}
	c.learn(found.Manifests)
	c.collect(ctx, found)
	images := c.images()
	return Result{Images: images, Asked: c.asked, Errs: c.errs}
}

// collector looks up images, each once.
type collector struct {
	Config

	mu sync.Mutex
	// known maps every reference that was looked up or learned to the digest of
	// its manifest.
	known     map[string]string
	manifests map[string]*manifest
	// limited has the registries that answered that there were too many requests.
	limited map[string]bool
	asked   int
	errs    []error
}

// manifest becomes a line of the data set if it has a name.
type manifest struct {
	layers []v1alpha1.ImageLayer
	names  map[string]bool
}

// wanted is an image to look up.
type wanted struct {
	// references that the image may have, in the order in which they are tried.
	references []string
	// names that the image has besides the reference that is found.
	names []string
}

// learn adds the images of ImageManifests for the platform.
func (c *collector) learn(manifests []v1alpha1.ImageManifest) {
	for i := range manifests {
		spec := &manifests[i].Spec
		if spec.Digest == "" || !inspect.RunsOn(spec.Platform, c.Platform) {
			continue
		}
		for _, reference := range manifests[i].Status.References {
			c.add(reference.Name, reference.Digest, spec)
		}
	}
}

// add records the manifest of a reference. It also records it for the digest of
// the reference and that of the manifest.
func (c *collector) add(name, digest string, spec *v1alpha1.ImageManifestSpec) {
	if c.manifests[spec.Digest] == nil {
		c.manifests[spec.Digest] = &manifest{layers: spec.Layers, names: map[string]bool{}}
	}
	c.known[name] = spec.Digest
	if named, err := reference.ParseNormalizedNamed(name); err == nil {
		for _, digest := range []string{digest, spec.Digest} {
			c.known[named.Name()+"@"+digest] = spec.Digest
		}
	}
}

// collect looks up all images. Images that pods name come first: they include
// most of the images on nodes.
func (c *collector) collect(ctx context.Context, found inspect.Inventory) {
	named, onNodes := c.named(found.Images), c.onNodes(found.Nodes)
	total := len(named) + len(onNodes)
	done := 0
	for _, images := range [][]wanted{named, onNodes} {
		var group errgroup.Group
		group.SetLimit(inspect.Concurrency)
		for _, image := range images {
			group.Go(func() error {
				c.find(ctx, image)
				c.mu.Lock()
				defer c.mu.Unlock()
				if done++; c.Progress != nil {
					c.Progress(done, total)
				}
				return nil
			})
		}
		_ = group.Wait() // errors are in errs
	}
}

// named returns the images with these names, as in pods.
func (c *collector) named(images []string) []wanted {
	var found []wanted
	seen := map[string]bool{}
	for _, image := range images {
		references, err := c.Client.References(image)
		if seen[image] || seen[strings.Join(references, " ")] {
			continue
		}
		seen[image], seen[strings.Join(references, " ")] = true, true
		if err != nil {
			c.errs = append(c.errs, err)
			continue
		}
		found = append(found, wanted{references: references})
	}
	return found
}

// onNodes returns images with all their names on nodes. Digests are looked up
// first: a tag may point to another image by now.
func (c *collector) onNodes(images [][]string) []wanted {
	var found []wanted
	index := map[string]int{}
	for _, names := range images {
		var digests, tags []string
		for _, name := range names {
			references, err := c.Client.References(name)
			switch {
			case err != nil || len(references) != 1: // "<none>@<none>"; otherwise nodes have full names
			case isTag(references[0]):
				tags = append(tags, references...)
			default:
				digests = append(digests, references...)
			}
		}
		slices.Sort(digests)
		slices.Sort(tags)
		image := wanted{references: slices.Concat(digests, tags), names: tags}
		if len(image.references) == 0 {
			continue
		}
		if i, ok := index[image.references[0]]; ok {
			found[i].names = append(found[i].names, image.names...)
			continue
		}
		index[image.references[0]] = len(found)
		found = append(found, image)
	}
	return found
}

// isTag reports whether a full reference has a tag and not a digest.
func isTag(reference string) bool { return !strings.Contains(reference, "@") }

// find looks up an image, in known or in a registry.
func (c *collector) find(ctx context.Context, image wanted) {
	if ctx.Err() != nil || c.name(image) {
		return
	}
	host, _, _ := strings.Cut(image.references[0], "/")
	c.mu.Lock()
	if c.limited[host] {
		c.errs = append(c.errs, fmt.Errorf("%s: not asked: registry %s limits the rate of requests; try again later, or with credentials", image.references[0], host))
		c.mu.Unlock()
		return
	}
	c.asked++
	c.mu.Unlock()

	name, resolution, err := c.Client.Resolve(ctx, image.references, []string{c.Platform})
	c.mu.Lock()
	if err != nil {
		c.errs = append(c.errs, err)
		if failure := (*registry.Error)(nil); errors.As(err, &failure) && failure.Reason == v1alpha1.ReasonRateLimited {
			c.limited[host] = true
		}
	} else {
		for i := range resolution.Manifests {
			c.add(name, resolution.Digest, &resolution.Manifests[i])
		}
	}
	c.mu.Unlock()
	c.name(image)
}

// name adds the names of an image if the image is known.
func (c *collector) name(image wanted) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, reference := range image.references {
		if digest, ok := c.known[reference]; ok {
			for _, name := range append(image.names, reference) {
				c.manifests[digest].names[name] = true
			}
			return true
		}
	}
	return false
}

// images returns the images that were found, in the order of names.
func (c *collector) images() []dataset.Image {
	var found []dataset.Image
	for digest, manifest := range c.manifests {
		names := slices.Sorted(maps.Keys(manifest.names))
		if len(names) == 0 {
			continue // in the cluster, but not wanted
		}
		if tags := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isTag(name) }); len(tags) > 0 {
			names = tags
		}
		if len(manifest.layers) == 0 {
			c.errs = append(c.errs, fmt.Errorf("%s: the image has no layers", names[0]))
			continue
		}
		image := dataset.Image{Image: names[0], Digest: digest, Aliases: names[1:]}
		for _, layer := range manifest.layers {
			image.Layers = append(image.Layers, dataset.Layer{Digest: layer.Digest, Size: layer.Size})
		}
		found = append(found, image)
	}
	slices.SortFunc(found, func(a, b dataset.Image) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Digest, b.Digest))
	})
	slices.SortFunc(c.errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return found
}

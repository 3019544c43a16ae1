package main

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
	"github.com/spf13/cobra"
	"go.podman.io/storage/pkg/ioutils"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/dataset"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

func newCollectCommand() *cobra.Command {
	var (
		options     registryOptions
		fromCluster bool
		kubeconfig  string
		platform    string
		output      string
	)
	command := &cobra.Command{
		Use:   "collect [IMAGE...]",
		Short: "Write what images consist of to a file, to measure with",
		Long: `Write what images consist of to a file, to measure with.

The images are those named, with "-" also those on standard input, one a line,
and with --from-cluster those of a cluster: of its pods and templates of pods and
on its nodes. What ImageManifests of the cluster tell is taken from there, the
rest is asked of registries. Nothing is pulled.

The file has a JSON object a line, one for each manifest:
  {"image":NAME,"digest":DIGEST,"aliases":[NAME...],"layers":[{"digest":DIGEST,"size":BYTES}...]}
with the layers in the manifest's order, the base first, and compressed sizes.
The same images give the same file. Images that fail are told and left out.`,
		Example: `  layer-resolver collect --from-cluster -o images.jsonl.gz
  layer-resolver collect - <images.txt >images.jsonl`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := checkPlatform(platform); err != nil {
				return err
			}
			if err := checkOutput(output); err != nil {
				return err
			}
			asker, err := options.asker()
			if err != nil {
				return err
			}
			c := newCollector(asker, platform)
			if slices.Contains(names, "-") {
				lines, err := readLines(cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("standard input: %w", err)
				}
				names = append(slices.DeleteFunc(names, func(name string) bool { return name == "-" }), lines...)
			}
			var found inventory
			if fromCluster {
				if found, err = clusterInventory(cmd.Context(), kubeconfig); err != nil {
					return err
				}
			}
			c.learn(found.manifests)
			found.images = append(found.images, names...)
			if len(found.images)+len(found.nodes) == 0 {
				return errors.New(`no images: name some, pass a list on standard input with "-", or use --from-cluster`)
			}
			if file, ok := cmd.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(file.Fd())) {
				c.progress = file
			}
			c.collect(cmd.Context(), found)
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("nothing is written: %w", context.Cause(cmd.Context()))
			}
			images := c.images()
			for _, err := range c.errs {
				cmd.PrintErrf("Error: %v\n", err)
			}
			if len(images) > 0 {
				if err := write(cmd.OutOrStdout(), output, images); err != nil {
					return err
				}
			}
			cmd.PrintErrf("%d images written; registries were asked about %d; %d failed\n", len(images), c.asked, len(c.errs))
			if len(c.errs) > 0 {
				return errors.New("not all images are there")
			}
			return nil
		},
	}
	options.addFlags(command.Flags())
	flags := command.Flags()
	flags.BoolVar(&fromCluster, "from-cluster", false, "all images of a cluster")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&platform, "platform", "linux/amd64", "os/architecture to look for in an index")
	flags.StringVarP(&output, "output", "o", "-", "`file` to write, compressed if its name ends in .gz; - is standard output")
	return command
}

// readLines returns what stands on the lines that are neither empty nor a comment.
func readLines(r io.Reader) ([]string, error) {
	var found []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			found = append(found, line)
		}
	}
	return found, lines.Err()
}

// checkOutput tells early what cannot be replaced by a file.
func checkOutput(name string) error {
	if info, err := os.Stat(name); name != "-" && err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: write to standard output (-) instead", name)
	}
	return nil
}

// write writes the images to a file, which is there in whole or as it was before.
func write(stdout io.Writer, name string, images []dataset.Image) error {
	if name == "-" {
		return dataset.Write(stdout, images)
	}
	var content bytes.Buffer
	if !strings.HasSuffix(name, ".gz") {
		if err := dataset.Write(&content, images); err != nil {
			return err
		}
	} else {
		compressed := gzip.NewWriter(&content) // without a time: same images, same file
		if err := errors.Join(dataset.Write(compressed, images), compressed.Close()); err != nil {
			return err
		}
	}
	return ioutils.AtomicWriteFile(name, content.Bytes(), 0o644)
}

// collector finds out what images are, each once.
type collector struct {
	asker    *asker
	platform string
	// progress is a terminal to tell how far it is; nil for none.
	progress io.Writer

	mu sync.Mutex
	// known has the digest of the manifest of every reference that was asked or
	// learned.
	known     map[string]string
	manifests map[string]*manifest
	// limited are the registries that want to be left alone.
	limited map[string]bool
	// asked counts the images for which registries were asked.
	asked int
	errs  []error
}

// manifest is a line of the file, if it has a name.
type manifest struct {
	layers []v1alpha1.ImageLayer
	names  map[string]bool
}

func newCollector(asker *asker, platform string) *collector {
	return &collector{asker: asker, platform: platform, known: map[string]string{}, manifests: map[string]*manifest{}, limited: map[string]bool{}}
}

// wanted is an image to find out about.
type wanted struct {
	// references that may be it, in the order in which they are tried.
	references []string
	// names that it has besides the reference that is found.
	names []string
}

// learn takes what ImageManifests tell about the platform.
func (c *collector) learn(manifests []v1alpha1.ImageManifest) {
	for i := range manifests {
		spec := &manifests[i].Spec
		if spec.Digest == "" || !runsOn(spec.Platform, c.platform) {
			continue
		}
		for _, reference := range manifests[i].Status.References {
			c.add(reference.Name, reference.Digest, spec)
		}
	}
}

// add notes what a reference is, and with it its digest and that of the manifest.
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

// collect finds out about all images. What pods name comes first: it tells about
// most of what nodes have.
func (c *collector) collect(ctx context.Context, found inventory) {
	named, onNodes := c.named(found.images), c.onNodes(found.nodes)
	total := len(named) + len(onNodes)
	done := 0
	for _, images := range [][]wanted{named, onNodes} {
		var group errgroup.Group
		group.SetLimit(concurrency)
		for _, image := range images {
			group.Go(func() error {
				c.find(ctx, image)
				c.mu.Lock()
				defer c.mu.Unlock()
				if done++; c.progress != nil {
					fmt.Fprintf(c.progress, "\r%d of %d images", done, total)
				}
				return nil
			})
		}
		_ = group.Wait() // what failed is in errs
	}
	if c.progress != nil && total > 0 {
		fmt.Fprintln(c.progress)
	}
}

// named are images by names as in pods.
func (c *collector) named(images []string) []wanted {
	var found []wanted
	seen := map[string]bool{}
	for _, image := range images {
		references, err := c.asker.client.References(image)
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

// onNodes are images by all their names on nodes. Digests are asked first: a tag
// may point to something else by now.
func (c *collector) onNodes(images [][]string) []wanted {
	var found []wanted
	index := map[string]int{}
	for _, names := range images {
		var digests, tags []string
		for _, name := range names {
			references, err := c.asker.client.References(name)
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

// isTag tells a tag from a digest, of a full reference.
func isTag(reference string) bool { return !strings.Contains(reference, "@") }

// find finds out about an image, from what is known or from a registry.
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

	name, resolution, err := c.asker.resolve(ctx, image.references, []string{c.platform})
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

// name gives an image that is known its names.
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

// images returns what was found, in the order of names.
func (c *collector) images() []dataset.Image {
	var found []dataset.Image
	for digest, manifest := range c.manifests {
		names := slices.Sorted(maps.Keys(manifest.names))
		if len(names) == 0 {
			continue // in the cluster, but nothing that was asked for
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

// Package inspect finds out which layers images have, which of them they share,
// and which images a cluster has. It is for commands at the shell. It asks
// registries for manifests and pulls nothing. All sizes are compressed bytes.
package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/terminal"
)

// Report is the information about images.
type Report struct {
	// Images in the order they were given, one for each platform.
	Images []Image `json:"images"`
	// Comparisons of the images that a node of a platform would pull. There is
	// none for a platform with fewer than two images.
	Comparisons []Comparison `json:"comparisons,omitempty"`
}

// Image is an image for a platform. Its sizes are compressed bytes.
type Image struct {
	// Image as it was given.
	Image string `json:"image"`
	// Reference is the full reference that the name means.
	Reference string `json:"reference"`
	// Index is the digest of the index that led to the manifest.
	Index                      string `json:"index,omitempty"`
	v1alpha1.ImageManifestSpec `json:",inline"`
}

// Comparison of images for one platform. All sizes are compressed bytes.
type Comparison struct {
	// Platform of the nodes that would pull the images: os/architecture.
	Platform string `json:"platform"`
	// Sum of the images, each on its own.
	Sum int64 `json:"sum"`
	// Union is the size of all images together, with every layer counted once.
	Union int64 `json:"union"`
	// Pairs of images that share layers, those that share most first.
	Pairs []Pair `json:"pairs"`
	// images is the number of images that were compared.
	images int
}

// Pair of images with layers in common.
type Pair struct {
	// Images by their references.
	Images [2]string `json:"images"`
	// Layers that both have, and their compressed size.
	Layers int   `json:"layers"`
	Bytes  int64 `json:"bytes"`
}

// Images looks up the layers of images, named as in pods, for the platforms
// (os/architecture), and compares the images. An image that fails for a
// platform gives an error; the others are still reported.
func Images(ctx context.Context, client *Client, images, platforms []string) (report Report, errs []error) {
	found := make([][]Image, len(images))
	failed := make([][]error, len(images))
	var group errgroup.Group
	group.SetLimit(Concurrency)
	for i, image := range images {
		group.Go(func() error {
			found[i], failed[i] = inspectOne(ctx, client, image, platforms)
			return nil
		})
	}
	_ = group.Wait() // errors are in failed
	report.Images = slices.Concat(found...)
	for _, platform := range platforms {
		if c := compare(report.Images, platform); c.images > 1 {
			report.Comparisons = append(report.Comparisons, c)
		}
	}
	return report, slices.Concat(failed...)
}

func inspectOne(ctx context.Context, client *Client, image string, platforms []string) (found []Image, errs []error) {
	references, err := client.References(image)
	if err != nil {
		return nil, []error{err}
	}
	reference, resolution, err := client.Resolve(ctx, references, platforms)
	if err != nil {
		return nil, []error{err}
	}
	for _, manifest := range resolution.Manifests {
		inspected := Image{Image: image, Reference: reference, ImageManifestSpec: manifest}
		if resolution.Index {
			inspected.Index = resolution.Digest
		}
		found = append(found, inspected)
	}
	for _, platform := range platforms {
		if !slices.ContainsFunc(found, func(i Image) bool { return RunsOn(i.Platform, platform) }) {
			errs = append(errs, fmt.Errorf("%s: the index has no manifest for %s", reference, platform))
		}
	}
	return found, errs
}

// compare compares the images that nodes of a platform pull.
func compare(images []Image, platform string) Comparison {
	result := Comparison{Platform: platform, Pairs: []Pair{}}
	union := map[string]int64{}
	var sets []map[string]int64 // the layers of each image, with their sizes
	var names []string
	for _, image := range images {
		if !RunsOn(image.Platform, platform) {
			continue
		}
		set := map[string]int64{}
		for _, layer := range image.Layers {
			set[layer.Digest], union[layer.Digest] = layer.Size, layer.Size
		}
		sets, names = append(sets, set), append(names, image.Reference)
		result.Sum += image.Size
	}
	result.images = len(sets)
	for _, size := range union {
		result.Union += size
	}
	for i := range sets {
		for j := range i {
			shared := Pair{Images: [2]string{names[j], names[i]}}
			for layer, size := range sets[i] {
				if _, ok := sets[j][layer]; ok {
					shared.Layers++
					shared.Bytes += size
				}
			}
			if shared.Layers > 0 {
				result.Pairs = append(result.Pairs, shared)
			}
		}
	}
	slices.SortStableFunc(result.Pairs, func(a, b Pair) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return result
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	return terminal.WriteJSON(w, r)
}

// WriteTable writes the report as readable tables: the layers of each image,
// and what the images of a platform share.
func (r *Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, image := range r.Images {
		if i > 0 {
			fmt.Fprintln(table)
		}
		fmt.Fprintln(table, strings.TrimSpace(image.Reference+"  "+image.Platform))
		if image.Index != "" {
			fmt.Fprintf(table, "index     %s\n", image.Index)
		}
		fmt.Fprintf(table, "manifest  %s\n", image.Digest)
		fmt.Fprint(table, "BYTES\t  LAYER\n")
		for _, layer := range image.Layers {
			fmt.Fprintf(table, "%d\t  %s\n", layer.Size, layer.Digest)
		}
		fmt.Fprintf(table, "%d\t  in %d layers\n", image.Size, len(image.Layers))
	}
	for _, c := range r.Comparisons {
		fmt.Fprintf(table, "\nShared on %s\n", c.Platform)
		fmt.Fprint(table, "BYTES\tLAYERS\t  IMAGES\n")
		for _, p := range c.Pairs {
			fmt.Fprintf(table, "%d\t%d\t  %s and %s\n", p.Bytes, p.Layers, p.Images[0], p.Images[1])
		}
		if others := c.images*(c.images-1)/2 - len(c.Pairs); others > 0 {
			fmt.Fprintf(table, "0\t0\t  other pairs: %d\n", others)
		}
		fmt.Fprintf(table, "%d\t\t  all %d images, each on its own\n", c.Sum, c.images)
		fmt.Fprintf(table, "%d\t\t  all %d images, every layer once\n", c.Union, c.images)
	}
	return table.Flush()
}

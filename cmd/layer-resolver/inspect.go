package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func newInspectCommand() *cobra.Command {
	var (
		options   registryOptions
		platforms []string
		output    string
	)
	command := &cobra.Command{
		Use:   "inspect IMAGE...",
		Short: "Show the layers of images, and what the images have in common",
		Long: `Show the layers of images, and what the images have in common.

Registries are asked for manifests; nothing is pulled. Images are named as in a
pod. All sizes are compressed bytes, as they are pulled.`,
		Example: `  layer-resolver inspect nginx:1.27 nginx:1.28
  layer-resolver inspect --platform linux/arm64 -o json registry.example.com/app:2 | jq .images[].size`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, images []string) error {
			show := showTable
			switch output {
			case "table":
			case "json":
				show = showJSON
			default:
				return fmt.Errorf("output %q: expected table or json", output)
			}
			for _, platform := range platforms {
				if err := checkPlatform(platform); err != nil {
					return err
				}
			}
			asker, err := options.asker()
			if err != nil {
				return err
			}
			report, errs := inspect(cmd.Context(), asker, images, platforms)
			for _, err := range errs {
				cmd.PrintErrf("Error: %v\n", err)
			}
			if len(report.Images) > 0 {
				if err := show(cmd.OutOrStdout(), report); err != nil {
					return err
				}
			}
			if len(errs) > 0 {
				return fmt.Errorf("not all images could be inspected: %d failed", len(errs))
			}
			return nil
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringSliceVar(&platforms, "platform", []string{defaultPlatform}, "os/architecture to look for in an index; may be given more than once")
	command.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return command
}

// inspection is what inspect found.
type inspection struct {
	// Images in the order they were given, one for each platform.
	Images []inspectedImage `json:"images"`
	// Comparisons of the images that a node of a platform would pull; none of a
	// platform with fewer than two.
	Comparisons []comparison `json:"comparisons,omitempty"`
}

// inspectedImage is an image for a platform.
type inspectedImage struct {
	// Image as it was given.
	Image string `json:"image"`
	// Reference in full that it means.
	Reference string `json:"reference"`
	// Index that led to the manifest.
	Index                      string `json:"index,omitempty"`
	v1alpha1.ImageManifestSpec `json:",inline"`
}

// comparison of images for one platform. All sizes are compressed bytes.
type comparison struct {
	Platform string `json:"platform"`
	// Sum of the images, each on its own.
	Sum int64 `json:"sum"`
	// Union is what pulling all takes: every layer once.
	Union int64 `json:"union"`
	// Pairs of images that share layers, those that share most first.
	Pairs []pair `json:"pairs"`
	// images that were compared.
	images int
}

// pair of images with layers in common.
type pair struct {
	Images [2]string `json:"images"`
	Layers int       `json:"layers"`
	Bytes  int64     `json:"bytes"`
}

// inspect asks for all images. One that fails for a platform has an error, and
// the others are there all the same.
func inspect(ctx context.Context, asker *asker, images, platforms []string) (report inspection, errs []error) {
	found := make([][]inspectedImage, len(images))
	failed := make([][]error, len(images))
	var group errgroup.Group
	group.SetLimit(concurrency)
	for i, image := range images {
		group.Go(func() error {
			found[i], failed[i] = inspectOne(ctx, asker, image, platforms)
			return nil
		})
	}
	_ = group.Wait() // what failed is in failed
	report.Images = slices.Concat(found...)
	for _, platform := range platforms {
		if c := compare(report.Images, platform); c.images > 1 {
			report.Comparisons = append(report.Comparisons, c)
		}
	}
	return report, slices.Concat(failed...)
}

func inspectOne(ctx context.Context, asker *asker, image string, platforms []string) (found []inspectedImage, errs []error) {
	references, err := asker.client.References(image)
	if err != nil {
		return nil, []error{err}
	}
	reference, resolution, err := asker.resolve(ctx, references, platforms)
	if err != nil {
		return nil, []error{err}
	}
	for _, manifest := range resolution.Manifests {
		inspected := inspectedImage{Image: image, Reference: reference, ImageManifestSpec: manifest}
		if resolution.Index {
			inspected.Index = resolution.Digest
		}
		found = append(found, inspected)
	}
	for _, platform := range platforms {
		if !slices.ContainsFunc(found, func(i inspectedImage) bool { return runsOn(i.Platform, platform) }) {
			errs = append(errs, fmt.Errorf("%s: the index has no manifest for %s", reference, platform))
		}
	}
	return found, errs
}

// compare compares the images that nodes of a platform pull.
func compare(images []inspectedImage, platform string) comparison {
	result := comparison{Platform: platform, Pairs: []pair{}}
	union := map[string]int64{}
	var sets []map[string]int64 // of layers, with their sizes
	var names []string
	for _, image := range images {
		if !runsOn(image.Platform, platform) {
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
			shared := pair{Images: [2]string{names[j], names[i]}}
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
	slices.SortStableFunc(result.Pairs, func(a, b pair) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return result
}

func showJSON(w io.Writer, report inspection) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}

func showTable(w io.Writer, report inspection) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, image := range report.Images {
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
	for _, c := range report.Comparisons {
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

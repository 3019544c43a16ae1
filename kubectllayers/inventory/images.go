package inventory

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
	"github.com/layer-locality/layer-locality/terminal"
)

// Image is what is known of an image.
type Image struct {
	Image string `json:"image"`
	// Names that it may have on a node; none if the reference is not valid.
	Names []string `json:"names"`
	// Nodes counts the nodes that have it, by what that is known from.
	Nodes map[locality.Provenance]int `json:"nodes"`
	// Variants are its contents by platform; none if nothing is known of them.
	Variants []Variant `json:"variants"`
	// Objects are the ImageManifests that name it.
	Objects []Object `json:"objects"`
}

// Variant is what an image consists of on a platform.
type Variant struct {
	// Platform, as os/architecture; empty if it is for all.
	Platform string `json:"platform,omitempty"`
	// Bytes is the sum of the layers, compressed.
	Bytes int64 `json:"bytes"`
	// From is where this is from: ImageManifest or nodes.
	From string `json:"from"`
	// Layers, the base first if From is ImageManifest, otherwise sorted by digest.
	Layers []Layer `json:"layers"`
}

// Layer is a layer of an image.
type Layer struct {
	Digest string `json:"digest"`
	// Bytes compressed.
	Bytes int64 `json:"bytes"`
	// Nodes that hold it.
	Nodes int `json:"nodes"`
}

// Object is an ImageManifest.
type Object struct {
	Name     string `json:"name"`
	Digest   string `json:"digest,omitempty"`
	Platform string `json:"platform,omitempty"`
	// Confirmed is when the registry last said that the reference points there.
	Confirmed time.Time `json:"confirmed,omitzero"`
	Private   bool      `json:"private,omitempty"`
	// Reason and Message are of a condition that is False.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Unknown reports whether nothing is known of an image: no node has it, no object has what it
// consists of, and no ImageManifest names it.
func (i *Image) Unknown() bool { return len(i.Nodes)+len(i.Variants)+len(i.Objects) == 0 }

// Images returns what is known of images.
func (i *Inventory) Images(references []string) []Image {
	images := []Image{}
	for _, reference := range references {
		images = append(images, i.image(reference))
	}
	return images
}

func (i *Inventory) image(name string) Image {
	names := i.known.Names(name)
	image := Image{Image: terminal.Line(name, maxShown), Names: shown(names), Nodes: map[locality.Provenance]int{}, Variants: []Variant{}, Objects: []Object{}}
	if len(names) == 0 {
		return image
	}
	for _, node := range i.known.Index().NodesWith(names) {
		image.Nodes[i.known.Provenance(node, names)]++
	}
	wanted := i.known.Wanted(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Image: name}}}})
	if len(wanted) > 0 {
		image.Variants = i.variants(wanted[0])
	}
	image.Objects = i.objects(names)
	return image
}

// variants returns the contents of an image on each platform.
func (i *Inventory) variants(wanted index.Wanted) []Variant {
	variants := []Variant{}
	for _, manifest := range wanted.Manifests {
		variants = append(variants, i.variant(manifest.Platform, "ImageManifest", manifest.Ordered(), manifest.Order != nil))
	}
	if len(variants) > 0 {
		return variants
	}
	seen := map[index.Platform]bool{}
	for _, node := range i.cluster.Nodes {
		platform := nodestatus.Platform(node)
		if seen[platform] || i.known.Index().Chains(node.Name) {
			continue // nodes that use chains know other keys than digests
		}
		seen[platform] = true
		if content, ok := i.known.Index().Image(wanted, node.Name); ok && len(content.Layers) > 0 {
			variants = append(variants, i.variant(platform, "nodes", content.Layers, false))
		}
	}
	return variants
}

func (i *Inventory) variant(platform index.Platform, from string, layers []index.Layer, ordered bool) Variant {
	v := Variant{From: from, Layers: []Layer{}}
	if platform != (index.Platform{}) {
		v.Platform = terminal.Line(platform.OS+"/"+platform.Architecture, maxShown)
	}
	keys := index.ChainKeys(layers)
	seen := map[string]bool{}
	for at, layer := range layers {
		l := Layer{Digest: layer.Digest, Bytes: layer.Size, Nodes: i.known.Index().Holders(layer.Digest)}
		if ordered && keys[at] != layer.Digest { // on nodes that use layers in chains
			l.Nodes += i.known.Index().Holders(keys[at])
		}
		if !seen[layer.Digest] {
			v.Bytes += layer.Size
		}
		seen[layer.Digest] = true
		v.Layers = append(v.Layers, l)
	}
	return v
}

// recordsOf returns the indexes of the records that have one of the names.
func (i *Inventory) recordsOf(names []imageref.Canonical) (indexes []int) {
	if i.records == nil {
		i.records = map[imageref.Canonical][]int{}
		for at, record := range i.cluster.Records {
			all := []imageref.Canonical{imageref.Canonical(record.Digest)}
			for _, reference := range record.References {
				if canonical, err := imageref.Parse(reference.Name); err == nil {
					all = append(all, canonical, imageref.Canonical(reference.Digest))
				}
			}
			for _, name := range all {
				i.records[name] = append(i.records[name], at)
			}
		}
		delete(i.records, "")
	}
	for _, name := range names {
		indexes = append(indexes, i.records[name]...)
	}
	slices.Sort(indexes)
	return slices.Compact(indexes)
}

// objects returns the ImageManifests that are about one of the names.
func (i *Inventory) objects(names []imageref.Canonical) []Object {
	objects := []Object{}
	for _, at := range i.recordsOf(names) {
		record := &i.cluster.Records[at]
		object := Object{
			Name: record.Name, Digest: terminal.Line(record.Digest, maxShown), Platform: terminal.Line(record.Platform, maxShown),
			Reason: terminal.Line(record.Reason, maxShown), Message: terminal.Line(record.Message, maxShown),
		}
		for _, reference := range record.References {
			canonical, err := imageref.Parse(reference.Name)
			if err != nil || !slices.Contains(names, canonical) && (reference.Digest == "" || !slices.Contains(names, imageref.Canonical(reference.Digest))) {
				continue
			}
			object.Private = object.Private || reference.Private
			if at := reference.LastConfirmed; at != nil && at.After(object.Confirmed) {
				object.Confirmed = at.Time
			}
		}
		objects = append(objects, object)
	}
	slices.SortFunc(objects, func(a, b Object) int { return strings.Compare(a.Name, b.Name) })
	return objects
}

// Shared is what images have in common.
type Shared struct {
	// Layers that several images have, those that carry most first; Bases are sets of layers that
	// the same images have.
	Layers []SharedLayer `json:"layers"`
	Bases  []Base        `json:"bases"`
}

// SharedLayer is a layer that several images have.
type SharedLayer struct {
	Digest string `json:"digest"`
	// Bytes compressed; SavedBytes is what they would be more if each image had its own.
	Bytes      int64 `json:"bytes"`
	SavedBytes int64 `json:"savedBytes"`
	Images     int   `json:"images"`
	Nodes      int   `json:"nodes"`
}

// Base is a set of layers that the same images have: as a rule, those of an image that they
// were built from.
type Base struct {
	Digests    []string `json:"digests"`
	Bytes      int64    `json:"bytes"`
	SavedBytes int64    `json:"savedBytes"`
	Images     int      `json:"images"`
	// Nodes that hold the rarest of its layers: at most so many hold all of it.
	Nodes int `json:"nodes"`
	// Names are some of the images.
	Names []string `json:"names"`
}

// maxNames is how many images of a base are named.
const maxNames = 5

// Shared returns what the images on the nodes have in common.
func (i *Inventory) Shared() Shared {
	usages, images := i.known.Index().Usages()
	shared := Shared{Layers: []SharedLayer{}, Bases: []Base{}}
	bases := map[string]*Base{}
	for _, u := range usages {
		if len(u.Images) < 2 {
			continue
		}
		saved := u.Size * int64(len(u.Images)-1)
		shared.Layers = append(shared.Layers, SharedLayer{Digest: u.Digest, Bytes: u.Size, SavedBytes: saved, Images: len(u.Images), Nodes: u.Nodes})
		key := keyOf(u.Images)
		base := bases[key]
		if base == nil {
			base = &Base{Images: len(u.Images), Nodes: u.Nodes, Names: []string{}}
			for _, number := range u.Images {
				if names := shown(images[number]); len(names) > 0 && len(base.Names) < maxNames {
					base.Names = append(base.Names, names[0])
				}
			}
			bases[key] = base
		}
		base.Digests = append(base.Digests, u.Digest)
		base.Bytes += u.Size
		base.SavedBytes += saved
		base.Nodes = min(base.Nodes, u.Nodes)
	}
	for _, base := range bases {
		shared.Bases = append(shared.Bases, *base)
	}
	slices.SortFunc(shared.Layers, func(a, b SharedLayer) int {
		return cmp.Or(cmp.Compare(b.SavedBytes, a.SavedBytes), strings.Compare(a.Digest, b.Digest))
	})
	slices.SortFunc(shared.Bases, func(a, b Base) int {
		return cmp.Or(cmp.Compare(b.SavedBytes, a.SavedBytes), strings.Compare(a.Digests[0], b.Digests[0]))
	})
	return shared
}

// keyOf returns a text that stands for a set of numbers.
func keyOf(numbers []int) string {
	var key []byte
	for _, n := range numbers {
		key = strconv.AppendInt(append(key, ' '), int64(n), 36)
	}
	return string(key)
}

// Matrix is how much pairs of images have in common.
type Matrix struct {
	Images []string `json:"images"`
	// Known states of each image whether its layers are known.
	Known []bool `json:"known"`
	// CommonBytes of two images, compressed; of an image with itself, all of it.
	CommonBytes [][]int64 `json:"commonBytes"`
}

// Common returns how much images have in common, of each pair on the first platform, by name, of
// which the layers of both are known; nothing if there is none: no node takes both.
func (i *Inventory) Common(references []string) Matrix {
	m := Matrix{Images: []string{}, Known: []bool{}, CommonBytes: [][]int64{}}
	var all [][]Variant
	for _, reference := range references {
		image := i.image(reference)
		slices.SortFunc(image.Variants, func(a, b Variant) int { return strings.Compare(a.Platform, b.Platform) })
		m.Images, m.Known, all = append(m.Images, image.Image), append(m.Known, len(image.Variants) > 0), append(all, image.Variants)
	}
	for _, a := range all {
		row := []int64{}
		for _, b := range all {
			row = append(row, common(a, b))
		}
		m.CommonBytes = append(m.CommonBytes, row)
	}
	return m
}

// common returns how many bytes two images have in common.
func common(a, b []Variant) (bytes int64) {
	for _, one := range a {
		for _, other := range b {
			if one.Platform != other.Platform && one.Platform != "" && other.Platform != "" {
				continue
			}
			has := map[string]bool{}
			for _, layer := range other.Layers {
				has[layer.Digest] = true
			}
			for _, layer := range one.Layers {
				if has[layer.Digest] {
					bytes += layer.Bytes
					delete(has, layer.Digest) // an image may have a layer twice
				}
			}
			return bytes
		}
	}
	return 0
}

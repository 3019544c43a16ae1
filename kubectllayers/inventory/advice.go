package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
	"github.com/layer-locality/layer-locality/terminal"
)

// Advice is something to change in how images are built or listed. Sizes are compressed bytes.
type Advice struct {
	// Kind is Base, Layer, Tag or List.
	Kind AdviceKind `json:"kind"`
	// About is what to change: a layer, a repository, a tag, or nodes.
	About string `json:"about"`
	// SavedBytes is what all nodes would hold less; PullBytes what a pull of one of the images would take less. Missing
	// where nothing proves it.
	SavedBytes int64 `json:"savedBytes,omitempty"`
	PullBytes  int64 `json:"pullBytes,omitempty"`
	// Bases that could be one, the proposed one first.
	Bases []AdvisedBase `json:"bases,omitempty"`
	// Images are some of those that this is about.
	Images []string `json:"images,omitempty"`
	Words  string   `json:"words"`
}

// AdvisedBase is what images with the same lowest layer have in common.
type AdvisedBase struct {
	// Lowest is the digest of the lowest layer, and Layers how many the base has.
	Lowest string `json:"lowest"`
	Layers int    `json:"layers"`
	// Bytes of these layers, compressed.
	Bytes int64 `json:"bytes"`
	// Images on it, and Nodes that hold it.
	Images int `json:"images"`
	Nodes  int `json:"nodes"`
}

// AdviceKind is what an Advice is about.
type AdviceKind string

const (
	// CommonBase is for images whose bases have nearly the same size and no layer in common, as releases of one base.
	CommonBase AdviceKind = "Base"
	// LargeOnTop is for large layers high in images, which every version of the image has anew.
	LargeOnTop AdviceKind = "Layer"
	// MovingTag is for tags under which nodes hold different contents.
	MovingTag AdviceKind = "Tag"
	// FullLists is for nodes of which not all images are known.
	FullLists AdviceKind = "List"
)

// What makes an Advice: bases are alike if their sizes differ by so many percent at most; a layer is large from so many
// bytes on, if it is that share of its image.
const (
	alikePercent = 5
	largeBytes   = 20_000_000
	largePercent = 20
)

// ordered is an image on a platform whose layers are known in their order, the base first.
type ordered struct {
	name   string
	layers []index.Layer
	nodes  []string
}

// Advise returns what to change, by what nodes hold: what saves most first.
func (i *Inventory) Advise() []Advice {
	images := i.ordered()
	all := append([]Advice{}, slices.Concat(i.commonBases(images), largeOnTop(images), i.movingTags(), i.fullLists())...)
	slices.SortStableFunc(all, func(a, b Advice) int {
		return cmp.Or(cmp.Compare(b.SavedBytes, a.SavedBytes), cmp.Compare(b.PullBytes, a.PullBytes), cmp.Compare(a.About, b.About))
	})
	return all
}

// ordered returns the images that nodes hold and of which ImageManifests have the layers.
func (i *Inventory) ordered() (images []ordered) {
	platforms := map[string]index.Platform{}
	for _, node := range i.cluster.Nodes {
		platforms[node.Name] = nodestatus.Platform(node)
	}
	seen := map[string]bool{}
	for _, record := range i.cluster.Records {
		for _, reference := range record.References {
			if seen[reference.Name] {
				continue
			}
			seen[reference.Name] = true
			wanted := i.known.Wanted(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Image: reference.Name}}}})
			if len(wanted) == 0 {
				continue
			}
			holders := i.known.Index().NodesWith(wanted[0].Names)
			for _, manifest := range wanted[0].Manifests {
				image := ordered{name: reference.Name, layers: manifest.Ordered()}
				for _, node := range holders {
					if manifest.Platform == (index.Platform{}) || manifest.Platform == platforms[node] {
						image.nodes = append(image.nodes, node)
					}
				}
				if manifest.Order != nil && len(image.layers) > 0 && len(image.nodes) > 0 {
					images = append(images, image)
				}
			}
		}
	}
	return images
}

// bottom is what images with the same lowest layer have in common.
type bottom struct {
	layers []index.Layer
	bytes  int64
	images []ordered
	nodes  map[string]bool
}

// basesOf groups images by their lowest layer. The base of one image alone is that layer: where it ends is not known.
func basesOf(images []ordered) []*bottom {
	by := map[string]*bottom{}
	for _, image := range images {
		lowest := image.layers[0].Digest
		b := by[lowest]
		if b == nil {
			b = &bottom{layers: image.layers, nodes: map[string]bool{}}
			by[lowest] = b
		}
		same := 0
		for same < min(len(b.layers), len(image.layers)) && b.layers[same].Digest == image.layers[same].Digest {
			same++
		}
		b.layers = b.layers[:same]
		b.images = append(b.images, image)
		for _, node := range image.nodes {
			b.nodes[node] = true
		}
	}
	for _, b := range by {
		if len(b.images) == 1 {
			b.layers = b.layers[:1]
		}
		for _, layer := range b.layers {
			b.bytes += layer.Size
		}
	}
	return slices.SortedFunc(maps.Values(by), func(a, b *bottom) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.layers[0].Digest, b.layers[0].Digest))
	})
}

// commonBases proposes for bases that are alike the one that saves most, unless it saves nothing.
func (i *Inventory) commonBases(images []ordered) (found []Advice) {
	bases := basesOf(images)
	for at := 0; at < len(bases); {
		end := at + 1
		for end < len(bases) && bases[end].bytes*100 <= bases[at].bytes*(100+alikePercent) {
			end++
		}
		if alike := bases[at:end]; len(alike) > 1 {
			if a := commonBase(alike); a.SavedBytes > 0 {
				found = append(found, a)
			}
		}
		at = end
	}
	return found
}

func commonBase(alike []*bottom) Advice {
	// All nodes will hold the target, so the smallest saves most; of several, the one that most nodes hold already.
	target := slices.MaxFunc(alike, func(a, b *bottom) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(len(a.nodes), len(b.nodes)), cmp.Compare(len(a.images), len(b.images)))
	})
	a := Advice{Kind: CommonBase, About: target.layers[0].Digest}
	holders := map[string]bool{}
	others := 0
	for _, b := range alike {
		a.Bases = append(a.Bases, AdvisedBase{b.layers[0].Digest, len(b.layers), b.bytes, len(b.images), len(b.nodes)})
		a.SavedBytes += b.bytes * int64(len(b.nodes))
		maps.Copy(holders, b.nodes)
		if b != target {
			others += len(b.images)
			a.PullBytes = max(a.PullBytes, b.bytes)
			for _, image := range b.images[:min(len(b.images), maxNames)] {
				a.Images = append(a.Images, terminal.Line(image.name, maxShown))
			}
		}
	}
	a.Images = a.Images[:min(len(a.Images), maxNames)]
	first := slices.Index(alike, target)
	a.Bases[0], a.Bases[first] = a.Bases[first], a.Bases[0]
	a.SavedBytes -= target.bytes * int64(len(holders))
	a.Words = fmt.Sprintf("%d bases of nearly one size share no layer: build %d images on that of %s", len(alike), others, terminal.Line(target.images[0].name, maxShown))
	return a
}

// largeOnTop proposes to move or split large layers in the upper half of images that differ in each version.
func largeOnTop(images []ordered) (found []Advice) {
	versions := map[string][]ordered{}
	users := map[string]int{}
	for _, image := range images {
		repository := image.name
		if full, err := imageref.Full(image.name); err == nil {
			repository = full.Name()
		}
		versions[repository] = append(versions[repository], image)
		for _, layer := range image.layers {
			users[layer.Digest]++
		}
	}
	for repository, all := range versions {
		if len(all) < 2 {
			continue // nothing shows that its layers change
		}
		var worst, sum int64
		var names []string
		place := 0
		for _, image := range all {
			var whole, largest int64
			at := 0
			for l, layer := range image.layers {
				whole += layer.Size
				if l*2 >= len(image.layers) && users[layer.Digest] == 1 && layer.Size > largest {
					largest, at = layer.Size, l+1
				}
			}
			if largest >= largeBytes && largest*100 >= whole*largePercent {
				names, sum = append(names, terminal.Line(image.name, maxShown)), sum+largest
				if largest > worst {
					worst, place = largest, at
				}
			}
		}
		if len(names) == len(all) {
			slices.Sort(names)
			found = append(found, Advice{
				Kind: LargeOnTop, About: terminal.Line(repository, maxShown), PullBytes: sum / int64(len(all)), Images: names[:min(len(names), maxNames)],
				Words: fmt.Sprintf("each of %d versions has a large layer of its own, such as layer %d: put what seldom changes below it", len(all), place),
			})
		}
	}
	return found
}

// movingTags returns tags under which nodes of one platform hold different contents.
func (i *Inventory) movingTags() (found []Advice) {
	contents := map[string]map[string]bool{}
	for _, node := range i.cluster.Nodes {
		platform := nodestatus.Platform(node)
		for image := range i.known.NodeImages(node.Name) {
			if !image.Report.Layers || i.known.Index().Chains(node.Name) {
				continue
			}
			var content strings.Builder
			for _, layer := range image.Layers {
				content.WriteString(layer.Digest)
			}
			for _, name := range image.Names {
				if digest(string(name)) == 1 {
					continue
				}
				key := platform.OS + "/" + platform.Architecture + " " + string(name)
				if contents[key] == nil {
					contents[key] = map[string]bool{}
				}
				contents[key][content.String()] = true
			}
		}
	}
	for key, all := range contents {
		if len(all) > 1 {
			platform, name, _ := strings.Cut(key, " ")
			found = append(found, Advice{Kind: MovingTag, About: terminal.Line(name, maxShown), Words: fmt.Sprintf("nodes hold %d contents under this tag for %s: give each build a tag of its own", len(all), terminal.Line(platform, maxShown))})
		}
	}
	return found
}

// fullLists returns an Advice about nodes whose kubelet lists no more images.
func (i *Inventory) fullLists() []Advice {
	var names []string
	used := 0
	for _, node := range i.cluster.Nodes {
		if n := i.node(node); n.FullList {
			names, used = append(names, n.Name), used+n.Known[locality.FromUse]
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []Advice{{Kind: FullLists, About: fmt.Sprintf("nodes: %d", len(names)), Words: fmt.Sprintf(
		"%s and others list %d images, the most by default, and pods use %d more: install layer-agent", names[0], kubeletLists, used)}}
}

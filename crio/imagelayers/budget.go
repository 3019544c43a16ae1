package imagelayers

import (
	"cmp"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

const (
	// DefaultBudget is how many bytes of one CRI message the layers of all images
	// may take. At about 96 bytes a layer it is enough for 2,000 images of 40 layers.
	DefaultBudget = 8 << 20

	// messageLimit is the size of a message above which the kubelet and crictl refuse it. A
	// little less is used, as what CRI-O reports besides layers is counted roughly.
	messageLimit, messageMargin = 16 << 20, 1 << 20
)

// Budget bounds the layers in one list of images. A list that fits is passed on
// as it is. From one that does not, the smallest layers are left out, as
// these save the least.
type Budget struct {
	limit int
	over  atomic.Bool
}

// NewBudget returns a budget of that many bytes in the protobuf encoding.
func NewBudget(limit int) *Budget {
	return &Budget{limit: limit}
}

// Apply returns what of each image's layers to report, in the same order, in a message
// that has other bytes besides: layers never make a message too large that is not without
// them. The same images give the same answer, and a layer is reported for all images that
// have it or for none. The arguments are not changed. Apply logs when lists
// start and when they cease to exceed the budget.
func (b *Budget) Apply(images []*Layers, other int) []*Layers {
	total := 0
	for _, image := range images {
		total += image.WireSize()
	}

	limit := min(b.limit, max(messageLimit-messageMargin-other, 0))

	if total <= limit {
		if b.over.Swap(false) {
			logrus.Infof("The layers of all images fit into one list again, nothing is left out")
		}

		return images
	}

	dropped, largestDropped := drop(images, total, limit)
	if !b.over.Swap(true) {
		logrus.Warnf(
			"The layers of %d images need %d bytes in a list of images, of which %d may be used: "+
				"leaving out the %d smallest layers (up to %d bytes each). Containers run as usual, but schedulers see fewer layers "+
				"of this node. Remove unused images (crictl rmi --prune), or set %s=off to report no layers",
			len(images), total, limit, len(dropped), largestDropped, SwitchEnv,
		)
	}

	kept := make([]*Layers, len(images))
	for i, image := range images {
		kept[i] = image.without(dropped)
	}

	return kept
}

// drop selects the smallest layers so that the others fit into the limit. It
// returns their annotation keys and the compressed size of the largest of them.
func drop(images []*Layers, total, limit int) (dropped map[string]struct{}, largestDropped int64) {
	type layer struct {
		key      string
		size     int64 // the largest that a manifest gives
		wireSize int   // in all images together
	}

	var layers []layer

	index := map[string]int{}

	for _, image := range images {
		if image == nil {
			continue
		}

		for key, value := range image.annotations {
			i, known := index[key]
			if !known {
				i = len(layers)
				index[key] = i

				layers = append(layers, layer{key: key})
			}

			// Cannot fail: FromManifest formatted it.
			size, _ := strconv.ParseInt(value, 10, 64)
			layers[i].size = max(layers[i].size, size)
			layers[i].wireSize += entryWireSize(key, value)
		}
	}

	slices.SortFunc(layers, func(a, b layer) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.key, b.key))
	})

	dropped = map[string]struct{}{}

	for _, layer := range layers {
		if total <= limit {
			break
		}

		dropped[layer.key] = struct{}{}
		largestDropped = layer.size
		total -= layer.wireSize
	}

	return dropped, largestDropped
}

// without returns the layers without those dropped: l itself if it has none of
// these.
func (l *Layers) without(dropped map[string]struct{}) *Layers {
	if l == nil {
		return nil
	}

	kept := make(map[string]string, len(l.annotations))

	for key, value := range l.annotations {
		if _, ok := dropped[key]; !ok {
			kept[key] = value
		}
	}

	if len(kept) == len(l.annotations) {
		return l
	}

	return newLayers(kept)
}

package index

import (
	"github.com/layer-locality/layer-locality/imageref"
)

// Platform is what an image is built for. Layers of the same name differ
// between platforms.
type Platform struct {
	OS, Architecture string
}

// Image is an image as a node reports it.
type Image struct {
	// Names are references with tag or digest; invalid ones are ignored.
	Names []string
	// Canonical are further names, canonical already.
	Canonical []imageref.Canonical
	// SizeBytes is the uncompressed size of the image, or with Compressed the compressed one.
	SizeBytes  int64
	Compressed bool
	// Layers may be incomplete or missing.
	Layers []Layer
}

// Layer is a layer of an image.
type Layer struct {
	Digest string
	// Size in compressed bytes.
	Size int64
}

// Manifest is what an image consists of on a platform.
type Manifest struct {
	// Platform of the manifest. The zero Platform stands for all that have no
	// Manifest of their own.
	Platform Platform
	Layers   []Layer
	// Order has, for each layer that the manifest lists, the base first, its index in Layers.
	// Nodes that use a layer again only above the same layers (see SetChains) need it: where
	// it is nil, they take what nodes report.
	Order []uint16
}

// Wanted is an image of a pod.
type Wanted struct {
	// Names are the names it may have on a node; the first that is known counts.
	Names []imageref.Canonical
	// Manifests, if not nil, are what it consists of, from sources other than the
	// nodes. They take precedence over what nodes report, because a tag may have
	// moved.
	Manifests []Manifest
	// PullAlways means that the kubelet asks the registry although a node holds the
	// image (pull policy Always). Then other layers under the same name are of no
	// use. Otherwise a node that has the name has the image.
	PullAlways bool
}

// maxSize bounds the size of a layer or image (1 TiB), so that sums of what
// untrusted nodes and registries report cannot overflow.
const maxSize = 1 << 40

// Limits of what counts in a report. A kubelet reports 50 images, and CRI-O gives
// each two names. The limit of layers is that of the whole project
// (v1alpha1.MaxLayers).
const (
	maxImages = 1024
	maxNames  = 16
	maxLayers = 512
)

// manifest returns the layers for a group from sources other than the nodes; ok is
// false if they have none.
func (w *Wanted) manifest(of group) (layers []Layer, ok bool) {
	var found *Manifest
	for i := range w.Manifests {
		switch m := &w.Manifests[i]; m.Platform {
		case of.Platform:
			return m.layersIn(of)
		case Platform{}:
			found = m
		}
	}
	if found == nil {
		return nil, false
	}
	return found.layersIn(of)
}

// Slot is a small number that stands for a node. It may be used again when the node
// is gone.
type Slot uint32

// Slots are the slots of all nodes at one moment.
type Slots struct {
	byName map[string]Slot
	// names has the node of every slot, "" where it is free.
	names []string
}

// Len returns the number that is larger than all of them.
func (s *Slots) Len() int { return len(s.names) }

// Name returns the name of the node with a slot; empty if it is free.
func (s *Slots) Name(slot Slot) string {
	if int(slot) >= len(s.names) {
		return ""
	}
	return s.names[slot]
}

// layer is a blob, or the indivisible piece that stands for an image known by name.
type layer struct {
	key string
	// size is the one with the most votes.
	size  int64
	votes sizeVotes
	// nodes are the nodes that hold it.
	nodes nodeSet
	// arriving has the nodes that do not hold it but to which a placed pod brings
	// it.
	arriving []arriving
	// refs counts the contents and reservations that point here.
	refs int
	// marked is the last call of markLayers that found it.
	marked uint64
	// opaque marks an indivisible piece; its size is uncompressed, unless compressed is set.
	opaque, compressed bool
}

// content is a set of layers that images consist of.
type content struct {
	key    string
	layers []*layer
	sizes  []int64
	// sizeBytes is the size that was reported: uncompressed, unless compressed is set.
	sizeBytes  int64
	compressed bool
	opaque     bool
	refs       int
}

// ofLayers returns the sum of the reported layer sizes, bounded as sizes of images are: sums over all
// contents must not overflow.
func (c *content) ofLayers() int64 {
	var sum int64
	for _, size := range c.sizes {
		sum += size
	}
	return min(sum, maxSize)
}

// imageReport is an image exactly as one or more nodes report it.
type imageReport struct {
	key     reportKey
	id      uint64
	names   []*name
	content *content
	// nodes are the nodes that report it, sorted.
	nodes []Slot
}

// name is a canonical name and the reports that have it.
type name struct {
	canonical imageref.Canonical
	reports   []*imageReport
}

// node is a node and what is known about it.
type node struct {
	name  string
	slot  Slot
	group group
	// joins is whether it joins downloads; nil if that is not known (see SetJoins).
	joins *bool
	// sources holds the reports of each source that reported, sorted by id.
	sources map[string][]*imageReport
	// reservations of pods that were placed here.
	reservations map[reservationKey]*reservation
}

// sizeVotes counts how many images report each size of a layer. Nearly always there is one size.
type sizeVotes struct {
	// total counts all, also those without a size.
	total int
	// best is the size with the most votes, in a tie the smallest; count is how
	// many.
	best  int64
	count int
	// others counts the other sizes; it is nil while all votes agree.
	others map[int64]int
}

// add adds a vote. An opaque image of 0 bytes is one whose size is not known: it has no vote.
func (v *sizeVotes) add(size int64, opaque bool) {
	v.total++
	if opaque && size == 0 {
		if v.count == 0 {
			v.best = 0
		}
		return
	}
	if v.count == 0 || size == v.best {
		v.best = size
		v.count++
		return
	}
	if v.others == nil {
		v.others = map[int64]int{}
	}
	v.others[size]++
	v.challenge(size)
}

// challenge makes size the best if it now wins.
func (v *sizeVotes) challenge(size int64) {
	count := v.others[size]
	if count < v.count || count == v.count && size > v.best {
		return
	}
	delete(v.others, size)
	if v.count > 0 {
		v.others[v.best] = v.count
	}
	v.best, v.count = size, count
}

func (v *sizeVotes) remove(size int64, opaque bool) {
	v.total--
	if opaque && size == 0 {
		return
	}
	if size != v.best {
		if v.others[size]--; v.others[size] == 0 {
			delete(v.others, size)
		}
		return
	}
	// The best lost a vote: only then all sizes have to be compared.
	v.count--
	rival, most := int64(0), 0
	for size, count := range v.others {
		if count > most || count == most && size < rival {
			rival, most = size, count
		}
	}
	switch {
	case most > 0:
		v.challenge(rival)
	case v.count == 0 && v.total > 0: // no vote is left
		v.best = 0
	}
}

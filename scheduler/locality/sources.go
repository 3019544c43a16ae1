package locality

import (
	"context"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// ImageSource tells which layers images consist of, in addition to what nodes
// report about the images they hold.
type ImageSource interface {
	// Manifests returns the layers of an image on each platform; nil if they are
	// not known. It is called in the scheduling cycle and must answer from memory.
	// The result must not be changed afterwards, by either side.
	Manifests(image imageref.Canonical) []index.Manifest
}

// AwaitedSource is an ImageSource that gets its answers a while after an image is
// first used. It may be worth waiting for one (waitForManifest).
type AwaitedSource interface {
	ImageSource
	// Awaits tells whether an answer about an image with these names may still
	// come: there is none yet, not even a negative one, and the source is able to
	// get one. It must answer from memory.
	Awaits(names []imageref.Canonical) bool
	// Answered tells whether there is an answer about an image with one of these names,
	// even a negative one. It must answer from memory.
	Answered(names []imageref.Canonical) bool
}

// FollowedSource is an ImageSource that also explains what nodes hold which state no layers,
// by the names of their images. The Tracker starts it and follows its answers.
type FollowedSource interface {
	ImageSource
	// Held returns the layers that a node of a platform has if it holds an image under a
	// name, a tag or a digest; ok is false if that is not known, or if it may be one of
	// several manifests. It must answer from memory. The result must not be changed
	// afterwards, by either side.
	Held(image imageref.Canonical, platform index.Platform) (layers []index.Layer, ok bool)
	// Start begins to learn and returns. It goes on until the context is done. inChains
	// means that a layer can be used again only above the same layers: then answers have
	// keys that stand for a layer and all below it. Whenever Held may have another answer
	// about some names, the source calls changed with them, from one goroutine at a time.
	Start(ctx context.Context, inChains bool, changed func(names []imageref.Canonical))
	// HasSynced tells that the first answers are in, or that there are none for now.
	HasSynced() bool
}

// LayerSource tells where images are, in addition to NodeStatus.
type LayerSource interface {
	// Name is the name that the source passes to the sink.
	Name() string
	// Start begins to report to the sink and returns. Reports go on until the
	// context is done. HasSynced of the result tells that the first ones are in.
	Start(ctx context.Context, sink LayerSink) (Syncer, error)
}

// LayerSink receives the reports of LayerSources. *index.Index is one.
type LayerSink interface {
	// SetImages replaces what the source says about the images on a node. If there
	// is no such Node, it forgets the report and returns false. A source must
	// report again when the Node is created or re-created, because everything
	// reported about a Node is forgotten when it is deleted.
	SetImages(source, node string, images []index.Image) bool
}

// Syncer tells whether the first reports are in.
type Syncer interface{ HasSynced() bool }

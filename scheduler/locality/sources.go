package locality

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// ManifestSource has the layers of images, in addition to what nodes report about the
// images they hold.
type ManifestSource interface {
	// Manifests returns the layers of an image on each platform; nil if they are
	// not known. It is called in the scheduling cycle and must answer from memory.
	// The result must not be changed afterwards, by either side.
	Manifests(image imageref.Canonical) []index.Manifest
}

// AwaitedSource is a ManifestSource that gets its answers a while after an image is
// first used. It may be worth waiting for one (waitForManifest).
type AwaitedSource interface {
	ManifestSource
	// Awaits reports whether an answer about an image with these names may still
	// come: there is none yet, not even a negative one, and the source is able to
	// get one. It must answer from memory.
	Awaits(names []imageref.Canonical) bool
	// Answered reports whether there is an answer about an image with one of these names,
	// even a negative one. It must answer from memory.
	Answered(names []imageref.Canonical) bool
	// OnAnswer has f called soon after there are new answers, negative ones too. It may be
	// called at any time. f must return at once.
	OnAnswer(f func())
}

// FollowedSource is a ManifestSource that also resolves the images of nodes that state no layers,
// by their names. The Tracker starts it and follows its answers.
type FollowedSource interface {
	ManifestSource
	// ManifestOnNode returns the manifest that a node of a platform has if it has an image under
	// a name, a tag or a digest; ok is false if that is not known, or if it may be one of
	// several manifests. It must answer from memory. The result must not be changed
	// afterwards, by either side.
	ManifestOnNode(image imageref.Canonical, platform index.Platform) (manifest index.Manifest, ok bool)
	// Start begins to follow and returns. It goes on until the context is done. Whenever
	// ManifestOnNode may have another answer about some names, the source calls changed with
	// them, from one goroutine at a time.
	Start(ctx context.Context, changed func(names []imageref.Canonical))
	// HasSynced reports whether the first answers are in, or there are none for now.
	HasSynced() bool
}

// NodeSource reports where images are, in addition to NodeStatus or in place of it.
type NodeSource interface {
	// Name is the name that the source passes to the sink.
	Name() string
	// Start begins to report to the sink and returns. Reports go on until the
	// context is done. HasSynced of the result reports whether the first ones are in.
	Start(ctx context.Context, sink NodeSink) (Syncer, error)
}

// NodeSink receives the reports of NodeSources.
type NodeSink interface {
	// SetImages replaces the images that the source reports for a node. If there
	// is no such Node, it forgets the report and returns false. A source must
	// report again when the Node is created or re-created, because everything
	// reported about a Node is forgotten when it is deleted.
	SetImages(source, node string, images []index.Image) bool
	// SetReport replaces what is reported of the Node of a name in place of its NodeStatus;
	// nil if nothing is, any more. Only one source may do that. A report counts as long as there is
	// a Node with its UID, and is kept until it is replaced. It must not be changed afterwards.
	SetReport(source, node string, report *NodeReport)
}

// NodeReport is what a NodeSource reports of a Node in place of its NodeStatus.
type NodeReport struct {
	// UID of the Node. The report is of no other Node of that name.
	UID types.UID
	// Fresh means that Images are those that the node has. Otherwise NodeStatus counts for
	// that, and the rest of the report is still true.
	Fresh bool
	// Images that the node has. Those without layers may be resolved by a FollowedSource.
	Images []index.Image
	// InChains means that the node uses a layer again only above the same layers. Then the
	// layers of Images are those of index.Chain.
	InChains bool
	// JoinsDownloads is whether the node downloads a layer once although two images that
	// are pulled at the same time need it; nil if that is not known.
	JoinsDownloads *bool
}

// Syncer reports whether the first reports are in.
type Syncer interface{ HasSynced() bool }

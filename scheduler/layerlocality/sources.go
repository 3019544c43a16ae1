package layerlocality

import (
	"context"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
)

// ImageSource tells what images consist of, in addition to what nodes report
// about the images they hold.
type ImageSource interface {
	// Manifests returns what an image consists of on each platform; nil if it is
	// not known. It is called in the scheduling cycle and must answer from memory.
	// The result must not be changed afterwards, by either side.
	Manifests(image imageref.Canonical) []index.Manifest
}

// AwaitedSource is an ImageSource that gets its answers a while after an image
// is first used, so that it may be worth waiting for one (waitForManifest).
type AwaitedSource interface {
	ImageSource
	// Awaits tells whether an answer about an image with these names may still
	// come: none is there, not even that there will be none, and the source is in
	// a state to get one. It must answer from memory.
	Awaits(names []imageref.Canonical) bool
}

// LayerSource tells where images are, in addition to NodeStatus.
type LayerSource interface {
	// Name is how the source calls itself towards the sink.
	Name() string
	// Start begins to report to the sink and returns. Reports go on until the
	// context is done. HasSynced of the result tells that the first ones are in.
	Start(ctx context.Context, sink LayerSink) (Syncer, error)
}

// LayerSink takes what LayerSources report. *index.Index is one.
type LayerSink interface {
	// SetImages replaces what the source says of the images on a node. It returns
	// false, and forgets it, if there is no such Node: a source reports again when
	// the Node is created, also when it is created anew, because with a Node all
	// that was said of it is forgotten.
	SetImages(source, node string, images []index.Image) bool
}

// Syncer tells whether the first reports are in.
type Syncer interface{ HasSynced() bool }

// Option adds a source to the plugin.
type Option func(*Factory)

// WithImageSource adds a source of what images consist of. The first of
// several that knows an image answers; what nodes report comes last. It is made
// once, when the scheduler starts.
func WithImageSource(make func(context.Context, fwk.Handle) (ImageSource, error)) Option {
	return func(f *Factory) { f.imageSources = append(f.imageSources, make) }
}

// WithLayerSource adds a source of where layers are.
func WithLayerSource(make func(context.Context, fwk.Handle) (LayerSource, error)) Option {
	return func(f *Factory) { f.layerSources = append(f.layerSources, make) }
}

// WithClock sets the clock on which arrivals and reports run out; for simulations.
// How long pods are held (waitForManifest) is always on the real one.
func WithClock(c clock.PassiveClock) Option { return func(f *Factory) { f.clock = c } }

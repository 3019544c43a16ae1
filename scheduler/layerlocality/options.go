package layerlocality

import (
	"context"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// Option adds a source to the plugin.
type Option func(*Factory)

// WithManifestSource adds a source of the layers of images. The first source that
// has an image answers; what nodes report comes last. The source is made once,
// when the scheduler starts.
func WithManifestSource(make func(context.Context, fwk.Handle) (locality.ManifestSource, error)) Option {
	return func(f *Factory) { f.manifestSources = append(f.manifestSources, make) }
}

// WithNodeSource adds a source of where layers are.
func WithNodeSource(make func(context.Context, fwk.Handle) (locality.NodeSource, error)) Option {
	return func(f *Factory) { f.nodeSources = append(f.nodeSources, make) }
}

// WithClock sets the clock for the timeouts of arrivals and reports; for
// simulations. How long pods are gated (waitForManifest) always depends on the real
// clock.
func WithClock(c clock.PassiveClock) Option { return func(f *Factory) { f.clock = c } }

// WithoutHolding has no pod held back: neither waitForManifest nor RequireAnnotation has an effect.
// For what cannot activate a pod in kube-scheduler's queue.
func WithoutHolding() Option { return func(f *Factory) { f.withoutHolding = true } }

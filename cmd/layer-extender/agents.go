package main

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// agents returns the agents there are, and the handlers of their debug endpoints by path.
func agents() ([]agent.Kind, map[string]http.Handler) {
	factory := layerlocality.NewFactory(layerlocality.WithImageSource(
		func(_ context.Context, handle fwk.Handle) (locality.ImageSource, error) {
			source, err := imagemanifests.NewSource(handle.KubeConfig())
			if err != nil {
				return nil, err
			}
			return source.Unawaited().Insisting(), nil
		}))
	kinds := []agent.Kind{{
		Name: "layers", Plugin: layerlocality.Name, Expects: true,
		New: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			if args, ok := args.(*config.LayerLocalityArgs); ok {
				args.WaitForManifest.Duration = 0 // an extender cannot hold pods back
			}
			return factory.New(ctx, args, handle)
		},
	}}
	return kinds, map[string]http.Handler{layerlocality.DebugPath: factory.DebugHandler()}
}

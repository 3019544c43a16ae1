package main

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/congestion"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/packing"
	"github.com/layer-locality/layer-locality/scheduler/safe"
	"github.com/layer-locality/layer-locality/scheduler/template"
)

// names returns the names of all agents.
func names() (names []string) {
	kinds, _ := agents()
	for _, kind := range kinds {
		names = append(names, kind.Name)
	}
	return names
}

// agents returns the agents there are, and the handlers of their debug endpoints by path.
func agents() ([]agent.Kind, map[string]http.Handler) {
	layers := layerlocality.NewFactory(layerlocality.WithManifestSource(
		func(_ context.Context, handle fwk.Handle) (locality.ManifestSource, error) {
			source, err := imagemanifests.NewSource(handle.KubeConfig())
			if err != nil {
				return nil, err
			}
			return source.WithoutLeaseWatch().RequireSync(), nil
		}), layerlocality.WithNodeSource(
		func(_ context.Context, handle fwk.Handle) (locality.NodeSource, error) {
			source, err := nodelayers.NewSource(handle.KubeConfig())
			if err != nil {
				return nil, err
			}
			return source.RequireSync(), nil
		}), layerlocality.WithoutHolding())
	rated, packed := safe.NewFactory(), packing.NewFactory()
	return []agent.Kind{
			{Name: "layers", Plugin: layerlocality.Name, New: layers.New, Expects: true, ScoresOnly: true},
			{Name: "safe-overload", Plugin: safe.Name, New: scoring(config.ScoreOverload, rated.New), RoundsDown: true},
			{Name: "safe-balance", Plugin: safe.Name, New: scoring(config.ScoreBalance, rated.New), ScoresOnly: true},
			{Name: "packing", Aliases: []string{"pigeon-holing"}, Plugin: packing.Name, New: packed.New, Expects: true},
			{Name: "congestion", Plugin: congestion.Name, New: congestion.New},
			{Name: "template", Aliases: []string{"foo"}, Plugin: template.Name, New: template.New},
		}, map[string]http.Handler{
			layerlocality.DebugPath: layers.DebugHandler(), safe.DebugPath: rated.DebugHandler(), packing.DebugPath: packed.DebugHandler(),
		}
}

// scoring makes Safe with the given score.
func scoring(score string, make frameworkruntime.PluginFactory) frameworkruntime.PluginFactory {
	return func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		if args, ok := args.(*config.SafeArgs); ok {
			args.Score = score
		}
		return make(ctx, args, handle)
	}
}

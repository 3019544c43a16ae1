// Command kube-scheduler is kube-scheduler with the plugins LayerLocality, QosAware, Safe,
// Packing and Congestion. A profile that enables none of them schedules as upstream does.
package main

import (
	"context"
	"net/http"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "github.com/layer-locality/layer-locality/memlimit"
	"github.com/layer-locality/layer-locality/scheduler/congestion"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
	"github.com/layer-locality/layer-locality/scheduler/packing"
	"github.com/layer-locality/layer-locality/scheduler/qosaware"
	"github.com/layer-locality/layer-locality/scheduler/safe"
)

var (
	_ locality.AwaitedSource  = &imagemanifests.Source{}
	_ locality.FollowedSource = &imagemanifests.Source{}
)

// imageManifests returns the source of what layer-resolver found out.
func imageManifests(ctx context.Context, handle fwk.Handle) (locality.ManifestSource, error) {
	go checkServer(ctx, handle.ClientSet().Discovery())
	return imagemanifests.NewSource(handle.KubeConfig())
}

// nodeLayers returns the source of the reports of agents on nodes.
func nodeLayers(_ context.Context, handle fwk.Handle) (locality.NodeSource, error) {
	return nodelayers.NewSource(handle.KubeConfig())
}

func main() {
	factory := layerlocality.NewFactory(layerlocality.WithManifestSource(imageManifests), layerlocality.WithNodeSource(nodeLayers))
	promises, rated, packed := qosaware.NewFactory(), safe.NewFactory(), packing.NewFactory()
	options := []app.Option{
		app.WithPlugin(layerlocality.Name, factory.New), app.WithPlugin(qosaware.Name, promises.New),
		app.WithPlugin(safe.Name, rated.New), app.WithPlugin(packing.Name, packed.New), app.WithPlugin(congestion.Name, congestion.New),
	}
	for path, handler := range map[string]http.Handler{
		layerlocality.DebugPath: factory.DebugHandler(), qosaware.DebugPath: promises.DebugHandler(),
		safe.DebugPath: rated.DebugHandler(), packing.DebugPath: packed.DebugHandler(),
	} {
		options = append(options, debugHandler(path, handler)...)
	}
	os.Exit(cli.Run(app.NewSchedulerCommand(options...)))
}

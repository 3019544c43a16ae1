// Command kube-scheduler is kube-scheduler with the LayerLocality plugin. A
// profile that does not enable it schedules as upstream does.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

var _ locality.AwaitedSource = &imagemanifests.Source{}

// imageManifests returns the source of what layer-resolver found out.
func imageManifests(ctx context.Context, handle fwk.Handle) (locality.ImageSource, error) {
	return imagemanifests.NewSource(ctx, handle.KubeConfig())
}

func main() {
	factory := layerlocality.NewFactory(layerlocality.WithImageSource(imageManifests))
	options := append(debugHandler(layerlocality.DebugPath, factory.DebugHandler()),
		app.WithPlugin(layerlocality.Name, factory.New))
	os.Exit(cli.Run(app.NewSchedulerCommand(options...)))
}

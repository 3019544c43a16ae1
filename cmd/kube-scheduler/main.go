// Command kube-scheduler is kube-scheduler with the LayerLocality plugin. A
// profile that does not enable it schedules as upstream does.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
	"github.com/layer-locality/layer-locality/scheduler/manifests"
)

func main() {
	factory := layerlocality.NewFactory(layerlocality.WithImageSource(manifests.NewSource))
	options := append(debugHandler(layerlocality.DebugPath, factory.DebugHandler()),
		app.WithPlugin(layerlocality.Name, factory.New))
	os.Exit(cli.Run(app.NewSchedulerCommand(options...)))
}

// Command layer-extender gives a kube-scheduler that has no plugin of ours the scores of
// LayerLocality: it is an HTTP extender (docs/extender.md).
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	_ "github.com/layer-locality/layer-locality/memlimit"
)

func main() { os.Exit(cli.Run(newCommand())) }

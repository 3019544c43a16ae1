package livetest

import (
	"os"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// StockNodes is the environment variable that makes tests which can do so run on a cluster
// where everything is stock but scheduler and resolver.
const StockNodes = "STOCK_NODES"

// Flavour returns the build of nodes and control plane that a test is to use.
func Flavour() cluster.Flavour {
	if os.Getenv(StockNodes) != "" {
		return cluster.Stock
	}
	return cluster.Patched
}

// ClusterName returns the name of a test's cluster: one with stock nodes may run beside
// the other one.
func ClusterName(name string) string {
	if Flavour() == cluster.Stock {
		return name + "-stock"
	}
	return name
}

package addons

import (
	"strings"

	"github.com/layer-locality/layer-locality/deploy/prefetcher"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// LayerPrefetcher is the name of the add-on that Prefetcher returns.
const LayerPrefetcher = "layer-prefetcher"

// Prefetcher returns layer-prefetcher as an add-on, with the rights of deploy/prefetcher and no others.
func Prefetcher(settings cluster.Component) cluster.Addon {
	const probes = "8083"
	return cluster.Addon{
		Name:     LayerPrefetcher,
		Settings: settings,
		Args: []string{
			"--kubeconfig=$(KUBECONFIG)", "--pod-image=$(PAUSE_IMAGE)",
			"--metrics-bind-address=0", "--health-probe-bind-address=$(ADDRESS):" + probes,
		},
		Health: "http://$(ADDRESS):" + probes + "/readyz",
		User:   "system:serviceaccount:kube-system:" + LayerPrefetcher,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"},
		Manifests: strings.Join([]string{string(prefetcher.CRD), string(prefetcher.RBAC), string(prefetcher.PriorityClass),
			strings.ReplaceAll(string(prefetcher.Policy), prefetcher.PodImage, "$(PAUSE_IMAGE)")}, "\n---\n"),
		Namespace: "kube-system",
	}
}

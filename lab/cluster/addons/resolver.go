// Package addons describes components of this repository that a cluster can run
// besides those of Kubernetes. They go into Config.Addons.
package addons

import (
	"net"
	"strings"

	"github.com/layer-locality/layer-locality/deploy/resolver"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// LayerResolver is the name of the add-on that Resolver returns.
const LayerResolver = "layer-resolver"

const (
	resolverMetrics = "8080"
	resolverProbes  = "8081"
	// resolverNamespace is the namespace in which deploy/resolver installs it.
	resolverNamespace = "kube-system"
)

// Resolver returns layer-resolver as an add-on. It has the
// CustomResourceDefinition and the rights of deploy/resolver, and no others.
// Those of components/pull-secrets can be added with Cluster.Apply.
func Resolver(settings cluster.Component) cluster.Addon {
	return cluster.Addon{
		Name:     LayerResolver,
		Settings: settings,
		Args: []string{
			"run",
			"--kubeconfig=$(KUBECONFIG)",
			"--registries-conf=$(REGISTRIES_CONF)",
			// The cluster's addresses are not public ones.
			"--allow-network=$(SUBNET)",
			// Without the tokens that deploy/resolver asks for.
			"--metrics-bind-address=$(ADDRESS):" + resolverMetrics, "--metrics-secure=false",
			"--health-probe-bind-address=$(ADDRESS):" + resolverProbes,
		},
		Health: "http://$(ADDRESS):" + resolverProbes + "/readyz",
		// The service account of deploy/resolver: a certificate with that name gets
		// its roles, as a token would. The groups are those of every service account
		// of the namespace.
		User:      "system:serviceaccount:" + resolverNamespace + ":" + LayerResolver,
		Groups:    []string{"system:serviceaccounts", "system:serviceaccounts:" + resolverNamespace},
		Manifests: strings.Join([]string{string(resolver.CRD), string(resolver.RBAC), string(resolver.Readers)}, "\n---\n"),
		Namespace: resolverNamespace,
	}
}

// ResolverURL returns the URL, without a path, at which layer-resolver serves
// its metrics.
func ResolverURL(c *cluster.Cluster) string {
	return "http://" + net.JoinHostPort(c.Address().String(), resolverMetrics)
}

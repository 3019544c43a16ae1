package addons

import (
	"maps"
	"net"

	"github.com/layer-locality/layer-locality/deploy/extender"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// LayerExtender is the name of the add-on that Extender returns.
const LayerExtender = "layer-extender"

const extenderPort = "5401"

// Extender returns layer-extender as an add-on. It has the rights of deploy/extender, and
// no others. It serves on the address of the control machine, to clients with a certificate
// of the cluster's CA.
func Extender(settings cluster.Component) cluster.Addon {
	return cluster.Addon{
		Name:     LayerExtender,
		Settings: settings,
		Args: []string{
			"--kubeconfig=$(KUBECONFIG)",
			"--bind-address=$(ADDRESS)", "--port=" + extenderPort,
			"--tls-cert-file=$(PKI)/control.crt", "--tls-private-key-file=$(PKI)/control.key",
			"--client-ca-file=$(PKI)/ca.crt",
		},
		Health: "https://$(ADDRESS):" + extenderPort + "/readyz",
		// The service account of deploy/extender, as with Resolver.
		User:      "system:serviceaccount:" + extenderNamespace + ":" + LayerExtender,
		Groups:    []string{"system:serviceaccounts", "system:serviceaccounts:" + extenderNamespace},
		Manifests: string(extender.RBAC),
		Namespace: extenderNamespace,
	}
}

// extenderNamespace is the namespace in which deploy/extender installs it.
const extenderNamespace = "kube-system"

// ExtenderEntry returns the entry of extenders, in a KubeSchedulerConfiguration of a cluster
// with this add-on, by which kube-scheduler asks layer-extender for the scores of an agent.
// Further fields replace its own.
func ExtenderEntry(agent string, weight int, further map[string]any) map[string]any {
	entry := map[string]any{
		"urlPrefix": "https://$(ADDRESS):" + extenderPort + "/scheduler", "prioritizeVerb": "priorities/" + agent,
		"weight": weight, "nodeCacheCapable": true, "ignorable": true, "httpTimeout": "200ms",
		"enableHTTPS": true,
		"tlsConfig": map[string]any{
			"caFile": "$(PKI)/ca.crt", "certFile": "$(PKI)/control.crt", "keyFile": "$(PKI)/control.key",
		},
	}
	maps.Copy(entry, further)
	return entry
}

// ExtenderURL returns the URL, without a path, at which layer-extender serves.
func ExtenderURL(c *cluster.Cluster) string {
	return "https://" + net.JoinHostPort(c.Address().String(), extenderPort)
}

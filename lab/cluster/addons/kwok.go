package addons

import (
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// KwokName is the name of the add-on that Kwok returns.
const KwokName = "kwok"

const kwokPort = "10247"

// Kwok returns kwok as an add-on: it does for Node objects and their pods what kubelets would.
// The file has its stages: when a Node or a pod changes, and how.
func Kwok(stages string) cluster.Addon {
	return cluster.Addon{
		Name: KwokName, Tool: true,
		Args: []string{
			"--kubeconfig=$(KUBECONFIG)",
			"--config=" + stages,
			"--manage-all-nodes",
			"--node-lease-duration-seconds=40",
			"--server-address=$(ADDRESS):" + kwokPort,
		},
		Health: "http://$(ADDRESS):" + kwokPort + "/healthz",
		// It is every node at once: no role of Kubernetes fits.
		User: "system:kwok", Groups: []string{"system:masters"},
	}
}

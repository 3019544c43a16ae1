package cluster

import (
	"net"
	"os"
	"path/filepath"

	"github.com/layer-locality/layer-locality/lab/cluster/pki"
)

// apiServerUser is the apiserver's user name at kubelets.
const apiServerUser = "kube-apiserver-kubelet-client"

// issueCertificates creates the CA and one identity for each component.
func (c *Cluster) issueCertificates() error {
	ca, err := pki.NewAuthority(c.path("pki"), "layer-locality "+c.config.Name)
	if err != nil {
		return err
	}
	if _, _, err := ca.KeyPair("service-account"); err != nil {
		return err
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	addresses := []net.IP{c.Address().AsSlice(), net.ParseIP(serviceIP), net.IPv4(127, 0, 0, 1)}
	if err := ca.Server("control", "control", names, addresses); err != nil {
		return err
	}
	if err := ca.Client("apiserver-kubelet", apiServerUser); err != nil {
		return err
	}
	server := "https://" + c.Address().String()
	if err := ca.Kubeconfig(c.Kubeconfig(), server, "admin", "system:masters"); err != nil {
		return err
	}
	for _, p := range c.processes() {
		if p.user == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(p.kubeconfig()), 0o755); err != nil {
			return err
		}
		if err := ca.Kubeconfig(p.kubeconfig(), server, p.user, p.groups...); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig returns the path of the component's kubeconfig.
func (p *Process) kubeconfig() string {
	name := p.name + ".kubeconfig"
	if node := p.cluster.Node(p.machine); node != nil {
		return filepath.Join(node.Dir(), name)
	}
	return p.cluster.path("pki", name)
}

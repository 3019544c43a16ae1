// Command network takes kindnetd's place in the clusters of lab/test/kind/run.sh: kindnetd is
// only published as an image, not as a Go module. It runs under kindnetd's own manifest and
// does what pods need to reach each other: it writes the CNI configuration of this node, and
// sets the routes to the pods of all others. It has no network policies and no masquerading,
// and IPv4 only.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	configFile = "/etc/cni/net.d/10-kindnet.conflist"
	config     = `{"cniVersion": "1.0.0", "name": "kindnet", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
    "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": %q}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`
)

func main() {
	fmt.Fprintln(os.Stderr, "network:", run(context.Background()))
	os.Exit(1)
}

// run does not end but with an error; the kubelet then starts it again.
func run(ctx context.Context) error {
	access, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	// There may be no kube-proxy yet.
	access.Host = "https://" + os.Getenv("CONTROL_PLANE_ENDPOINT")
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	for ; ; time.Sleep(2 * time.Second) {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, node := range nodes.Items {
			if err := connect(node); err != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
	}
}

// connect has pods of this node use its part of the pod network, or reach those of another.
func connect(node corev1.Node) error {
	address := internalIP(node)
	if address == "" || node.Spec.PodCIDR == "" {
		return nil // not yet
	}
	if address == os.Getenv("HOST_IP") {
		return write(configFile, fmt.Sprintf(config, node.Spec.PodCIDR))
	}
	_, subnet, err := net.ParseCIDR(node.Spec.PodCIDR)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{Dst: subnet, Gw: net.ParseIP(address)})
}

func internalIP(node corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// write puts a complete file there at once, if it is not there.
func write(file, content string) error {
	if old, err := os.ReadFile(file); err == nil && string(old) == content {
		return nil
	}
	if err := os.WriteFile(file+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

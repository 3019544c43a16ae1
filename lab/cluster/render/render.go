package render

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

const (
	dockerHub = "docker.io"
	etcdURL   = "http://127.0.0.1:2379"
	// serviceCIDR has the addresses of services, which are valid inside the cluster only.
	serviceCIDR = "10.96.0.0/16"
)

// cniDirs are where distributions install the CNI plugins.
var cniDirs = []string{"/usr/libexec/cni", "/usr/lib/cni", "/opt/cni/bin"}

// CNIDir is the folder of the CNI plugins.
func CNIDir() string {
	for _, dir := range cniDirs {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return cniDirs[0]
}

// Cluster is what the files of all components depend on.
type Cluster struct {
	// Dir is the folder of the cluster.
	Dir string
	// Registry is the host and port of the cluster's registry.
	Registry string
	// Address of the control machine, and of the host in the cluster's network.
	Address, HostAddress netip.Addr
	// Runc is the path of runc itself.
	Runc string
	// AuditPolicy of the apiserver, and the file for what it logs; without a policy it logs nothing.
	AuditPolicy, AuditLog string
}

// Node is what the files of a node's components depend on.
type Node struct {
	*Cluster
	Name string
	// Dir is the folder of the node.
	Dir     string
	Address netip.Addr
	PodCIDR netip.Prefix
	// CRISocket is the path of the container runtime's socket.
	CRISocket string
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

// PauseImage returns the image of sandboxes.
func (c *Cluster) PauseImage() string { return c.Registry + "/pause:1" }

// StorageEnv points programs at the cluster's registries, signature policy and
// storage instead of the host's.
func (c *Cluster) StorageEnv() []string {
	registries := c.RegistriesConf()
	return []string{
		"CONTAINER_REGISTRIES_CONF=" + registries,  // CRI-O
		"CONTAINERS_REGISTRIES_CONF=" + registries, // podman, buildah
		"CONTAINERS_STORAGE_CONF=" + c.path("config", "storage.conf"),
	}
}

// RegistriesConf is the containers-registries.conf(5) of the nodes.
func (c *Cluster) RegistriesConf() string { return c.path("config", "registries.conf") }

// Shared writes the files that all container runtimes and the tools read.
func (c *Cluster) Shared() error {
	if err := os.MkdirAll(c.path("config"), 0o755); err != nil {
		return err
	}
	// The cluster's registry also stands in for Docker Hub, which no node can
	// reach: "busybox" means docker.io/library/busybox:latest, as elsewhere.
	registries := map[string]any{
		"unqualified-search-registries": []string{dockerHub},
		"registry": []map[string]any{
			{"location": c.Registry, "insecure": true},
			{"prefix": dockerHub, "location": c.Registry, "insecure": true},
			// On any port.
			{"location": c.HostAddress.String(), "insecure": true},
		},
	}
	if err := writeTOML(c.RegistriesConf(), registries); err != nil {
		return err
	}
	storage := map[string]any{"storage": map[string]any{
		"driver": "overlay", "graphroot": graphRoot, "runroot": runRoot,
	}}
	if err := writeTOML(c.path("config", "storage.conf"), storage); err != nil {
		return err
	}
	policy := map[string]any{"default": []map[string]string{{"type": "insecureAcceptAnything"}}}
	if err := folder.WriteJSON(c.path("config", "policy.json"), policy); err != nil {
		return err
	}
	if !machine.MayLowerOOMScore() {
		if err := os.WriteFile(c.runcPath(), runcScript, 0o755); err != nil {
			return err
		}
		if err := os.Symlink(c.Runc, c.runcPath()+".real"); err != nil {
			return err
		}
	}
	if c.AuditPolicy != "" {
		if err := folder.WriteFile(c.path("config", "audit-policy.yaml"), []byte(c.AuditPolicy)); err != nil {
			return err
		}
	}
	// No name server: nodes cannot reach the host's.
	return folder.WriteFile(c.path("config", "resolv.conf"), nil)
}

//go:embed runc.sh
var runcScript []byte

// runcPath returns the path of the program that container runtimes run as runc.
func (c *Cluster) runcPath() string {
	if machine.MayLowerOOMScore() {
		return c.Runc
	}
	return c.path("config", "runc")
}

// RegistryArguments configures a registry that stores images in a folder.
func (c *Cluster) RegistryArguments(storage string) ([]string, error) {
	config := map[string]any{
		"version": "0.1",
		"log":     map[string]any{"level": "info", "accesslog": map[string]any{"disabled": false}},
		"storage": map[string]any{
			"filesystem": map[string]any{"rootdirectory": storage},
			"delete":     map[string]any{"enabled": true},
		},
		"http": map[string]any{"addr": c.Registry},
	}
	path := c.path("config", "registry.yaml")
	return []string{"serve", path}, writeYAML(path, config)
}

// podNetwork is the CNI configuration of a node. Nodes route to each other's
// pods, so no masquerading is needed.
func podNetwork(pods netip.Prefix) map[string]any {
	return map[string]any{
		"cniVersion": "0.4.0",
		"name":       "pods",
		"plugins": []map[string]any{{
			"type":        "bridge",
			"bridge":      "cni0",
			"isGateway":   true,
			"ipMasq":      false,
			"hairpinMode": true,
			"ipam": map[string]any{
				"type":   "host-local",
				"ranges": [][]map[string]string{{{"subnet": pods.String()}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
			},
		}},
	}
}

// networkDir is the folder with the CNI configuration of the node's pods.
func (n *Node) networkDir() string { return filepath.Join(n.Dir, "cni") }

// shared writes the files that every container runtime and its tools need on a node: the pods'
// network, and where crictl finds the runtime.
func (n *Node) shared() error {
	if err := folder.WriteJSON(filepath.Join(n.networkDir(), "10-pods.conflist"), podNetwork(n.PodCIDR)); err != nil {
		return err
	}
	endpoint := "unix://" + n.CRISocket
	// crictl gives up after two seconds, and a busy runtime goes on with what it was asked for:
	// an image would be gone whose removal failed. Seconds.
	crictl := map[string]any{"runtime-endpoint": endpoint, "image-endpoint": endpoint, "timeout": 60}
	return writeYAML(filepath.Join(n.Dir, "crictl.yaml"), crictl)
}

// KubeletArguments configures a kubelet, with the caller's fields in place of its own.
func (n *Node) KubeletArguments(kubeconfig string, settings map[string]any) ([]string, error) {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": n.path("pki", "ca.crt")},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + n.CRISocket,
		"healthzBindAddress":       n.Address.String(),
		"resolvConf":               n.path("config", "resolv.conf"),
		"volumePluginDir":          "/var/lib/kubelet/volume-plugins",
		// What differs from the kubelet's defaults, as README.md lists it. The machine: no
		// systemd, maybe cgroup v1, maybe swap.
		"cgroupDriver": "cgroupfs",
		"failCgroupV1": false,
		"failSwapOn":   false,
		// The disk is the host's: its fill level must not evict pods or remove images.
		"evictionHard":                map[string]string{"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		// As OpenShift has it; tests of several pulls at once also run with the kubelet's
		// default.
		"serializeImagePulls": false,
	}
	maps.Copy(config, settings)
	path := filepath.Join(n.Dir, "kubelet.yaml")
	return []string{
		"--config=" + path,
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + n.Name,
		"--node-ip=" + n.Address.String(),
	}, writeYAML(path, config)
}

// EtcdArguments configures an etcd that serves its health and metrics at a URL.
func EtcdArguments(metrics string) []string {
	// Plain text on the control plane's own loopback, which no other process of
	// the host can reach.
	return []string{
		"--name=control",
		"--data-dir=/var/lib/etcd",
		"--listen-client-urls=" + etcdURL,
		"--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=control=http://127.0.0.1:2380",
		"--listen-metrics-urls=" + metrics,
		// The cluster does not survive a crash of the machine, so there is no data to
		// lose.
		"--unsafe-no-fsync",
	}
}

// APIServerArguments configures the apiserver.
func (c *Cluster) APIServerArguments() []string {
	args := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0",
		"--advertise-address=" + c.Address.String(),
		// Port 443, so that the kubernetes service works without a proxy.
		"--secure-port=443",
		"--tls-cert-file=" + c.path("pki", "control.crt"),
		"--tls-private-key-file=" + c.path("pki", "control.key"),
		"--client-ca-file=" + c.path("pki", "ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("pki", "service-account.pub"),
		"--service-account-signing-key-file=" + c.path("pki", "service-account.key"),
		"--service-cluster-ip-range=" + serviceCIDR,
		// The names of nodes cannot be resolved.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + c.path("pki", "apiserver-kubelet.crt"),
		"--kubelet-client-key=" + c.path("pki", "apiserver-kubelet.key"),
		"--allow-privileged=true",
	}
	if c.AuditPolicy != "" {
		args = append(args,
			"--audit-policy-file="+c.path("config", "audit-policy.yaml"),
			"--audit-log-path="+c.AuditLog)
	}
	return args
}

// ControllerManagerArguments configures the controller manager.
func (c *Cluster) ControllerManagerArguments(kubeconfig string) []string {
	return append(c.secureServing(kubeconfig),
		"--kubeconfig="+kubeconfig,
		"--service-account-private-key-file="+c.path("pki", "service-account.key"),
		"--root-ca-file="+c.path("pki", "ca.crt"),
		"--cluster-signing-cert-file="+c.path("pki", "ca.crt"),
		"--cluster-signing-key-file="+c.path("pki", "ca.key"),
		"--use-service-account-credentials=true",
		// The component creates this folder; the default is below the host's
		// /usr/libexec.
		"--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
		"--leader-elect=false",
	)
}

// secureServing returns the flags by which a component serves on the address of the
// control machine, to those whom the apiserver lets.
func (c *Cluster) secureServing(kubeconfig string) []string {
	return []string{
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + c.Address.String(),
		"--tls-cert-file=" + c.path("pki", "control.crt"),
		"--tls-private-key-file=" + c.path("pki", "control.key"),
		"--client-ca-file=" + c.path("pki", "ca.crt"),
	}
}

// SchedulerArguments configures the scheduler, with the caller's fields in place of its own.
func (c *Cluster) SchedulerArguments(kubeconfig string, settings map[string]any) ([]string, error) {
	config := map[string]any{
		"apiVersion":     "kubescheduler.config.k8s.io/v1",
		"kind":           "KubeSchedulerConfiguration",
		"leaderElection": map[string]any{"leaderElect": false},
	}
	maps.Copy(config, settings)
	connection := map[string]any{"kubeconfig": kubeconfig}
	if further, ok := settings["clientConnection"].(map[string]any); ok {
		maps.Copy(connection, further)
	}
	config["clientConnection"] = connection
	path := c.path("config", "scheduler.yaml")
	return append(c.secureServing(kubeconfig), "--config="+path), writeYAML(path, config)
}

func writeTOML(path string, content map[string]any) error {
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(content); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return folder.WriteFile(path, text.Bytes())
}

func writeYAML(path string, content map[string]any) error {
	// Through JSON, because the struct tags are for JSON.
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if data, err = yaml.JSONToYAML(data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return folder.WriteFile(path, data)
}

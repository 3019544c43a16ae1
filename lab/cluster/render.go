package cluster

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

const dockerHub = "docker.io"

// storageEnv points programs at the cluster's registries, signature policy and
// storage instead of the host's.
func (c *Cluster) storageEnv() []string {
	registries := c.registriesConf()
	return []string{
		"CONTAINER_REGISTRIES_CONF=" + registries,  // CRI-O
		"CONTAINERS_REGISTRIES_CONF=" + registries, // podman, buildah
		"CONTAINERS_STORAGE_CONF=" + c.path("config", "storage.conf"),
	}
}

// registriesConf is the containers-registries.conf(5) of the nodes.
func (c *Cluster) registriesConf() string { return c.path("config", "registries.conf") }

// writeShared writes the files that all container runtimes and the tools read.
func (c *Cluster) writeShared() error {
	if err := os.MkdirAll(c.path("config"), 0o755); err != nil {
		return err
	}
	// The cluster's registry also stands in for Docker Hub, which no node can
	// reach: "busybox" means docker.io/library/busybox:latest, as elsewhere.
	registries := map[string]any{
		"unqualified-search-registries": []string{dockerHub},
		"registry": []map[string]any{
			{"location": c.Registry().Address, "insecure": true},
			{"prefix": dockerHub, "location": c.Registry().Address, "insecure": true},
			// On any port.
			{"location": c.HostAddress().String(), "insecure": true},
		},
	}
	if err := writeTOML(c.registriesConf(), registries); err != nil {
		return err
	}
	storage := map[string]any{"storage": map[string]any{
		"driver": "overlay", "graphroot": graphRoot, "runroot": runRoot,
	}}
	if err := writeTOML(c.path("config", "storage.conf"), storage); err != nil {
		return err
	}
	policy := map[string]any{"default": []map[string]string{{"type": "insecureAcceptAnything"}}}
	if err := writeJSON(c.path("config", "policy.json"), policy); err != nil {
		return err
	}
	if !machine.MayLowerOOMScore() {
		if err := os.WriteFile(c.runcPath(), runcScript, 0o755); err != nil {
			return err
		}
		if err := os.Symlink(c.runc(), c.runcPath()+".real"); err != nil {
			return err
		}
	}
	if c.config.AuditPolicy != "" {
		if err := writeFile(c.path("config", "audit-policy.yaml"), []byte(c.config.AuditPolicy)); err != nil {
			return err
		}
	}
	// No name server: nodes cannot reach the host's.
	return writeFile(c.path("config", "resolv.conf"), nil)
}

//go:embed runc.sh
var runcScript []byte

// runc is the path of runc itself.
func (c *Cluster) runc() string { return c.config.program(c.config.labOr(tools), "runc") }

// runcPath returns the path of the program that container runtimes run as runc.
func (c *Cluster) runcPath() string {
	if machine.MayLowerOOMScore() {
		return c.runc()
	}
	return c.path("config", "runc")
}

func (c *Cluster) registryArguments(settings Component) ([]string, error) {
	if err := noConfig(settings); err != nil {
		return nil, err
	}
	config := map[string]any{
		"version": "0.1",
		"log":     map[string]any{"level": "info", "accesslog": map[string]any{"disabled": false}},
		"storage": map[string]any{
			"filesystem": map[string]any{"rootdirectory": c.Registry().Storage},
			"delete":     map[string]any{"enabled": true},
		},
		"http": map[string]any{"addr": c.Registry().Address},
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

// runtimeArguments writes the files that every container runtime and its tools
// need on a node: the pods' network, and where crictl finds the runtime.
func (n *Node) runtimeArguments(settings Component) ([]string, error) {
	if err := writeJSON(filepath.Join(n.networkDir(), "10-pods.conflist"), podNetwork(n.PodCIDR)); err != nil {
		return nil, err
	}
	endpoint := "unix://" + n.CRISocket()
	// crictl gives up after two seconds, and a busy runtime goes on with what it was asked for:
	// an image would be gone whose removal failed. Seconds.
	crictl := map[string]any{"runtime-endpoint": endpoint, "image-endpoint": endpoint, "timeout": 60}
	if err := writeYAML(filepath.Join(n.Dir(), "crictl.yaml"), crictl); err != nil {
		return nil, err
	}
	return n.kind.arguments(n, settings)
}

func (n *Node) kubeletArguments(settings Component) ([]string, error) {
	c := n.cluster
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": c.path("pki", "ca.crt")},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + n.CRISocket(),
		"healthzBindAddress":       n.Address.String(),
		"resolvConf":               c.path("config", "resolv.conf"),
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
	maps.Copy(config, settings.Config)
	path := filepath.Join(n.Dir(), "kubelet.yaml")
	return []string{
		"--config=" + path,
		"--kubeconfig=" + n.Kubelet().kubeconfig(),
		"--hostname-override=" + n.Name,
		"--node-ip=" + n.Address.String(),
	}, writeYAML(path, config)
}

func (c *Cluster) etcdArguments(settings Component) ([]string, error) {
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
		"--listen-metrics-urls=" + c.etcdHealth(),
		// The cluster does not survive a crash of the machine, so there is no data to
		// lose.
		"--unsafe-no-fsync",
	}, noConfig(settings)
}

func (c *Cluster) apiServerArguments(settings Component) ([]string, error) {
	args := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0",
		"--advertise-address=" + c.Address().String(),
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
	if c.config.AuditPolicy != "" {
		args = append(args,
			"--audit-policy-file="+c.path("config", "audit-policy.yaml"),
			"--audit-log-path="+c.AuditLog())
	}
	return args, noConfig(settings)
}

func (c *Cluster) controllerManagerArguments(settings Component) ([]string, error) {
	kubeconfig := c.ControllerManager().kubeconfig()
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
	), noConfig(settings)
}

// secureServing returns the flags by which a component serves on the address of the
// control machine, to those whom the apiserver lets.
func (c *Cluster) secureServing(kubeconfig string) []string {
	return []string{
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + c.Address().String(),
		"--tls-cert-file=" + c.path("pki", "control.crt"),
		"--tls-private-key-file=" + c.path("pki", "control.key"),
		"--client-ca-file=" + c.path("pki", "ca.crt"),
	}
}

func (c *Cluster) schedulerArguments(settings Component) ([]string, error) {
	kubeconfig := c.Scheduler().kubeconfig()
	config := map[string]any{
		"apiVersion":     "kubescheduler.config.k8s.io/v1",
		"kind":           "KubeSchedulerConfiguration",
		"leaderElection": map[string]any{"leaderElect": false},
	}
	for field, value := range settings.Config {
		config[field] = expandAll(c, value)
	}
	connection := map[string]any{"kubeconfig": kubeconfig}
	if further, ok := settings.Config["clientConnection"].(map[string]any); ok {
		maps.Copy(connection, further)
	}
	config["clientConnection"] = connection
	path := c.path("config", "scheduler.yaml")
	return append(c.secureServing(kubeconfig), "--config="+path), writeYAML(path, config)
}

func noConfig(settings Component) error {
	if len(settings.Config) > 0 {
		return errors.New("it has no configuration file: use Args")
	}
	return nil
}

func writeTOML(path string, content map[string]any) error {
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(content); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return writeFile(path, text.Bytes())
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
	return writeFile(path, data)
}

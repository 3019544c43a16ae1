package cluster

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/cluster/internal/machine"
)

const dockerHub = "docker.io"

// storageEnv points programs at the cluster's registries, signature policy and
// storage instead of the host's.
func (c *Cluster) storageEnv() []string {
	registries := c.path("config", "registries.conf")
	return []string{
		"CONTAINER_REGISTRIES_CONF=" + registries,  // CRI-O
		"CONTAINERS_REGISTRIES_CONF=" + registries, // podman, buildah
		"CONTAINERS_STORAGE_CONF=" + c.path("config", "storage.conf"),
	}
}

// writeShared writes the files that all CRI-O instances and the tools read.
func (c *Cluster) writeShared() error {
	if err := os.MkdirAll(c.path("config"), 0o755); err != nil {
		return err
	}
	// The cluster's registry also stands in for Docker Hub, which no node
	// reaches: "busybox" is docker.io/library/busybox:latest, as elsewhere.
	registries := map[string]any{
		"unqualified-search-registries": []string{dockerHub},
		"registry": []map[string]any{
			{"location": c.Registry().Address, "insecure": true},
			{"prefix": dockerHub, "location": c.Registry().Address, "insecure": true},
			// On whatever port.
			{"location": c.HostAddress().String(), "insecure": true},
		},
	}
	if err := writeTOML(c.path("config", "registries.conf"), registries); err != nil {
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
		if err := os.WriteFile(c.runtimePath(), runcScript, 0o755); err != nil {
			return err
		}
		if err := os.Symlink(c.Tool("runc"), c.runtimePath()+".real"); err != nil {
			return err
		}
	}
	if c.config.AuditPolicy != "" {
		if err := writeFile(c.path("config", "audit-policy.yaml"), []byte(c.config.AuditPolicy)); err != nil {
			return err
		}
	}
	// No name server: the host's are out of a node's reach.
	return writeFile(c.path("config", "resolv.conf"), nil)
}

//go:embed runc.sh
var runcScript []byte

// runtimePath is what CRI-O runs as runc.
func (c *Cluster) runtimePath() string {
	if machine.MayLowerOOMScore() {
		return c.Tool("runc")
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

// crioArguments writes a node's CRI-O configuration. CRI-O merges the caller's
// fields from a drop-in file. Its sockets and state are at their usual places,
// which are the node's own.
func (n *Node) crioArguments(settings Component) ([]string, error) {
	c := n.cluster
	conmon, err := exec.LookPath("conmon")
	if err != nil {
		return nil, err
	}
	config := map[string]any{"crio": map[string]any{
		"root":                 graphRoot,
		"runroot":              runRoot,
		"storage_driver":       "overlay",
		"log_dir":              "/var/log/pods/crio",
		"version_file":         "/run/crio/version",
		"version_file_persist": "/var/lib/crio/version",
		"clean_shutdown_file":  "/var/lib/crio/clean.shutdown",
		"api": map[string]any{
			"listen":         n.CRISocket(),
			"stream_address": n.Address.String(),
			"stream_port":    "0",
		},
		"runtime": map[string]any{
			// Without systemd.
			"cgroup_manager":         "cgroupfs",
			"conmon_cgroup":          "pod",
			"default_runtime":        "runc",
			"pinns_path":             c.config.binary("pinns", Component{Flavour: settings.Flavour}),
			"namespaces_dir":         "/run/crio/ns",
			"container_exits_dir":    "/run/crio/exits",
			"hooks_dir":              []string{},
			"default_mounts_file":    "",
			"apparmor_profile":       "unconfined",
			"irqbalance_config_file": "",
			"runtimes": map[string]any{"runc": map[string]any{
				"runtime_path":   c.runtimePath(),
				"runtime_type":   "oci",
				"runtime_root":   "/run/runc",
				"monitor_path":   conmon,
				"monitor_cgroup": "pod",
			}},
			// The node has no rules for it; pods use the host network.
			"disable_hostport_mapping": true,
		},
		"image": map[string]any{
			"pause_image":          c.pauseImage(),
			"pause_command":        "/pause",
			"signature_policy":     c.path("config", "policy.json"),
			"signature_policy_dir": c.path("config", "policies"),
		},
		"network": map[string]any{
			"network_dir": filepath.Join(n.Dir(), "cni"),
			"plugin_dirs": []string{cniDir()},
		},
		"nri": map[string]any{"enable_nri": false},
	}}
	path, dropIns := filepath.Join(n.Dir(), "crio.conf"), filepath.Join(n.Dir(), "crio.conf.d")
	if err := writeTOML(path, config); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dropIns, 0o755); err != nil {
		return nil, err
	}
	if err := writeTOML(filepath.Join(dropIns, "50-settings.conf"), settings.Config); err != nil {
		return nil, err
	}
	crictl := map[string]any{"runtime-endpoint": "unix://" + n.CRISocket(), "image-endpoint": "unix://" + n.CRISocket()}
	if err := writeYAML(filepath.Join(n.Dir(), "crictl.yaml"), crictl); err != nil {
		return nil, err
	}
	args := []string{"--config", path, "--config-dir", dropIns}
	return args, writeJSON(filepath.Join(n.Dir(), "cni", "10-pods.conflist"), podNetwork(n.PodCIDR))
}

// podNetwork is the CNI configuration of a node. Nodes route to each other's
// pods, so that nothing has to be masqueraded.
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
		// Without systemd, on cgroup v1 and v2.
		"cgroupDriver":                  "cgroupfs",
		"cgroupsPerQOS":                 false,
		"enforceNodeAllocatable":        []string{},
		"failCgroupV1":                  false,
		"failSwapOn":                    false,
		"makeIPTablesUtilChains":        false,
		"localStorageCapacityIsolation": false,
		// The host's disk is not the nodes' to clean: its fill level must not
		// evict pods or remove images.
		"evictionHard":                map[string]string{"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		// Pulls of one node side by side, so that the link is the limit, and
		// none refused: after a pod with requests could not be pulled, a
		// kubelet without pod cgroups crashes (Kubernetes 1.36, in
		// doPodResizeAction).
		"serializeImagePulls": false,
		"registryPullQPS":     0,
	}
	maps.Copy(config, settings.Config)
	path := filepath.Join(n.Dir(), "kubelet.yaml")
	return []string{
		"--config=" + path,
		"--kubeconfig=" + filepath.Join(n.Dir(), "kubelet.kubeconfig"),
		"--hostname-override=" + n.Name,
		"--node-ip=" + n.Address.String(),
	}, writeYAML(path, config)
}

func (c *Cluster) etcdArguments(settings Component) ([]string, error) {
	// Plain text on the control plane's own loopback, which no other process
	// of the host reaches.
	return []string{
		"--name=control",
		"--data-dir=/var/lib/etcd",
		"--listen-client-urls=" + etcdURL,
		"--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=control=http://127.0.0.1:2380",
		"--listen-metrics-urls=" + c.etcdHealth(),
		// A cluster that ends with the machine has no data to lose.
		"--unsafe-no-fsync",
	}, noConfig(settings)
}

func (c *Cluster) apiServerArguments(settings Component) ([]string, error) {
	args := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0",
		"--advertise-address=" + c.address().String(),
		// 443, so that the kubernetes service leads here without a proxy.
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
		// Nodes have no names that anything could look up.
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
	kubeconfig := c.path("pki", "controller-manager.kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + c.address().String(),
		"--tls-cert-file=" + c.path("pki", "control.crt"),
		"--tls-private-key-file=" + c.path("pki", "control.key"),
		"--client-ca-file=" + c.path("pki", "ca.crt"),
		"--service-account-private-key-file=" + c.path("pki", "service-account.key"),
		"--root-ca-file=" + c.path("pki", "ca.crt"),
		"--cluster-signing-cert-file=" + c.path("pki", "ca.crt"),
		"--cluster-signing-key-file=" + c.path("pki", "ca.key"),
		"--use-service-account-credentials=true",
		"--leader-elect=false",
	}, noConfig(settings)
}

func (c *Cluster) schedulerArguments(settings Component) ([]string, error) {
	kubeconfig := c.path("pki", "scheduler.kubeconfig")
	config := map[string]any{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"clientConnection": map[string]any{"kubeconfig": kubeconfig},
		"leaderElection":   map[string]any{"leaderElect": false},
	}
	maps.Copy(config, settings.Config)
	path := c.path("config", "scheduler.yaml")
	return []string{
		"--config=" + path,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + c.address().String(),
		"--tls-cert-file=" + c.path("pki", "control.crt"),
		"--tls-private-key-file=" + c.path("pki", "control.key"),
		"--client-ca-file=" + c.path("pki", "ca.crt"),
	}, writeYAML(path, config)
}

func noConfig(settings Component) error {
	if len(settings.Config) > 0 {
		return fmt.Errorf("it has no configuration file: use Args")
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
	// By way of JSON, which is what the fields' names are for.
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if data, err = yaml.JSONToYAML(data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return writeFile(path, data)
}

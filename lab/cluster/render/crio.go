package render

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Where CRI-O keeps images, as a node sees it.
const (
	graphRoot = "/var/lib/containers/storage"
	runRoot   = "/run/containers/storage"
)

// CRIOArguments writes a node's CRI-O configuration, with pinns at the path given. CRI-O merges the caller's
// fields from a drop-in file. It keeps its state in its usual folders, which
// belong to the node.
func (n *Node) CRIOArguments(pinns string, settings map[string]any) ([]string, error) {
	if err := n.shared(); err != nil {
		return nil, err
	}
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
			"listen":         n.CRISocket,
			"stream_address": n.Address.String(),
			"stream_port":    "0",
		},
		"runtime": map[string]any{
			// Without systemd.
			"cgroup_manager":         "cgroupfs",
			"conmon_cgroup":          "pod",
			"default_runtime":        "runc",
			"pinns_path":             pinns,
			"namespaces_dir":         "/run/crio/ns",
			"container_exits_dir":    "/run/crio/exits",
			"hooks_dir":              []string{},
			"default_mounts_file":    "",
			"apparmor_profile":       "unconfined",
			"irqbalance_config_file": "",
			"runtimes": map[string]any{"runc": map[string]any{
				"runtime_path":   n.runcPath(),
				"runtime_type":   "oci",
				"runtime_root":   "/run/runc",
				"monitor_path":   conmon,
				"monitor_cgroup": "pod",
			}},
			// The node has no firewall rules for host ports; pods use the host network.
			"disable_hostport_mapping": true,
		},
		"image": map[string]any{
			"pause_image":          n.PauseImage(),
			"pause_command":        "/pause",
			"signature_policy":     n.path("config", "policy.json"),
			"signature_policy_dir": n.path("config", "policies"),
			// The default is below /etc, which belongs to the host.
			"namespaced_auth_dir": "/run/crio/auth",
		},
		"network": map[string]any{
			"network_dir": n.networkDir(),
			"plugin_dirs": []string{CNIDir()},
		},
		"nri": map[string]any{"enable_nri": false},
	}}
	path, dropIns := filepath.Join(n.Dir, "crio.conf"), filepath.Join(n.Dir, "crio.conf.d")
	if err := writeTOML(path, config); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dropIns, 0o755); err != nil {
		return nil, err
	}
	args := []string{"--config", path, "--config-dir", dropIns}
	return args, writeTOML(filepath.Join(dropIns, "50-settings.conf"), settings)
}

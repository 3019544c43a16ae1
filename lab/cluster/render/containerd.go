package render

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/layer-locality/layer-locality/lab/cluster/folder"
)

// Where containerd keeps images and its state, as a node sees it. The latter has its socket.
const (
	containerdRoot  = "/var/lib/containerd"
	containerdState = "/run/containerd"
)

// ContainerdSocket is the path of containerd's socket in the folder of a node, as the host sees it (machine/init.sh).
var ContainerdSocket = filepath.Join("root", containerdState, "containerd.sock")

// The plugins of containerd's CRI. The last one has its server, in containerd 1.7 all of it.
const (
	containerdImages  = "io.containerd.cri.v1.images"
	containerdRuntime = "io.containerd.cri.v1.runtime"
	containerdCRI     = "io.containerd.grpc.v1.cri"
)

// DropUnpackedBlobs returns the settings of a node's containerd, changed so that it drops the blobs of layers once they
// are unpacked, as many distributions do.
func DropUnpackedBlobs(settings map[string]any) map[string]any {
	changed := map[string]any{}
	merge(changed, settings)
	merge(changed, map[string]any{"plugins": map[string]any{containerdImages: map[string]any{"discard_unpacked_layers": true}}})
	return changed
}

// ContainerdArguments writes a node's configuration of containerd, with the shim at the path given and the caller's
// fields merged into it. These are named as in containerd 2, also where version2 is set: then the file is one of
// version 2, for containerd 1.7.
func (n *Node) ContainerdArguments(shim string, version2 bool, settings map[string]any) ([]string, error) {
	if err := n.shared(); err != nil {
		return nil, err
	}
	hosts := filepath.Join(n.Dir, "certs.d")
	if err := n.registryHosts(hosts); err != nil {
		return nil, err
	}
	config := map[string]any{
		"version": 3,
		"root":    containerdRoot,
		"state":   containerdState,
		"grpc":    map[string]any{"address": filepath.Join(containerdState, "containerd.sock")},
		// Of no use here.
		"disabled_plugins": []string{"io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"},
		"plugins": map[string]any{
			// The default is below /opt, which belongs to the host.
			"io.containerd.internal.v1.opt": map[string]any{"path": containerdRoot + "/opt"},
			containerdImages: map[string]any{
				"snapshotter":             "overlayfs",
				"discard_unpacked_layers": false,
				"pinned_images":           map[string]any{"sandbox": n.PauseImage()},
				"registry":                map[string]any{"config_path": hosts},
			},
			containerdRuntime: map[string]any{
				"disable_apparmor": true,
				// A score below the caller's own takes CAP_SYS_RESOURCE.
				"restrict_oom_score_adj": true,
				"containerd": map[string]any{"runtimes": map[string]any{"runc": map[string]any{
					"runtime_type": "io.containerd.runc.v2",
					"runtime_path": shim,
					"options": map[string]any{
						"BinaryName": n.runcPath(),
						// Without systemd.
						"SystemdCgroup": false,
					},
				}}},
				"cni": map[string]any{"bin_dirs": []string{CNIDir()}, "conf_dir": n.networkDir()},
			},
			containerdCRI: map[string]any{
				"stream_server_address": n.Address.String(), "stream_server_port": "0",
			},
		},
	}
	merge(config, settings)
	if version2 {
		toVersion2(config)
	}
	path := filepath.Join(n.Dir, "containerd.toml")
	return []string{"--config", path}, writeTOML(path, config)
}

// toVersion2 turns a configuration of version 3 into one of version 2, which containerd 1.7 reads:
// the fields of three plugins are those of one. containerd 2 does the reverse with its plugins'
// migrateConfig.
func toVersion2(config map[string]any) {
	plugins := config["plugins"].(map[string]any)
	images, runtime := plugins[containerdImages].(map[string]any), plugins[containerdRuntime].(map[string]any)
	merge(plugins, map[string]any{containerdCRI: runtime})
	cri := plugins[containerdCRI].(map[string]any)
	cni := cri["cni"].(map[string]any)
	cni["bin_dir"] = CNIDir()
	delete(cni, "bin_dirs")
	for key, value := range images {
		switch key {
		case "pinned_images":
			cri["sandbox_image"] = value.(map[string]any)["sandbox"]
		case "snapshotter", "discard_unpacked_layers":
			merge(cri, map[string]any{"containerd": map[string]any{key: value}})
		default:
			cri[key] = value
		}
	}
	delete(plugins, containerdImages)
	delete(plugins, containerdRuntime)
	config["version"] = 2
}

// registryHosts writes containerd's configuration of registries: the cluster's own over plain
// HTTP, also in place of Docker Hub. It has no way to name a host on any port, so registries at
// HostAddress are not reached over plain HTTP.
func (c *Cluster) registryHosts(hosts string) error {
	url := "http://" + c.Registry
	text := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", url, url)
	for _, registry := range []string{c.Registry, dockerHub} {
		if err := os.MkdirAll(filepath.Join(hosts, registry), 0o755); err != nil {
			return err
		}
		if err := folder.WriteFile(filepath.Join(hosts, registry, "hosts.toml"), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// merge writes the fields of from into into, tables field by field. It changes no table of from.
func merge(into, from map[string]any) {
	for key, value := range from {
		table, ok := value.(map[string]any)
		if !ok {
			into[key] = value
			continue
		}
		merged := map[string]any{}
		if before, ok := into[key].(map[string]any); ok {
			maps.Copy(merged, before)
		}
		merge(merged, table)
		into[key] = merged
	}
}

package render

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"
)

// rendered returns a cluster of two nodes that consists of files only.
func rendered(t *testing.T) (*Cluster, []*Node) {
	t.Helper()
	c := &Cluster{
		Dir: t.TempDir(), Registry: "203.0.113.1:5000", Runc: "/bin/runc",
		Address: netip.MustParseAddr("203.0.113.1"), HostAddress: netip.MustParseAddr("203.0.113.2"),
	}
	if err := c.Shared(); err != nil {
		t.Fatal(err)
	}
	var nodes []*Node
	for i, name := range []string{"n1", "n2"} {
		node := &Node{
			Cluster: c, Name: name, Dir: c.path(name), CRISocket: c.path(name, "cri.sock"),
			Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(11 + i)}), PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24),
		}
		if err := os.MkdirAll(node.networkDir(), 0o755); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	return c, nodes
}

func readYAML(t *testing.T, path string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := yaml.UnmarshalStrict(data, &content); err != nil {
		t.Fatal(err)
	}
	return content
}

// at returns the value at a path of keys in nested tables.
func at(t *testing.T, content map[string]any, keys ...string) any {
	t.Helper()
	var value any = content
	for _, key := range keys {
		table, ok := value.(map[string]any)
		if !ok {
			t.Fatalf("no table before %s in %v", key, keys)
		}
		value = table[key]
	}
	return value
}

func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	_, nodes := rendered(t)
	node := nodes[1]
	args, err := node.KubeletArguments("kubeconfig", map[string]any{
		"nodeStatusMaxImages":       -1,
		"nodeStatusReportFrequency": "10s",
		"serializeImagePulls":       true,
		"fieldOfTheFuture":          map[string]any{"minSize": "1Mi"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--hostname-override=n2", "--node-ip=203.0.113.12", "--kubeconfig=kubeconfig"} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
	got := readYAML(t, filepath.Join(node.Dir, "kubelet.yaml"))
	for key, want := range map[string]any{
		"nodeStatusMaxImages":       -1.0,
		"nodeStatusReportFrequency": "10s",
		"serializeImagePulls":       true, // replaces a default
		"cgroupDriver":              "cgroupfs",
		"kind":                      "KubeletConfiguration",
		"containerRuntimeEndpoint":  "unix://" + node.CRISocket,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if at(t, got, "fieldOfTheFuture", "minSize") != "1Mi" {
		t.Error("a field that this package does not have is lost")
	}
	if at(t, got, "authentication", "anonymous", "enabled") != false {
		t.Error("anonymous requests to the kubelet are allowed")
	}
}

func TestCRIOConfiguration(t *testing.T) {
	t.Parallel()
	_, nodes := rendered(t)
	node := nodes[0]
	args, err := node.CRIOArguments("/bin/pinns", map[string]any{
		"crio": map[string]any{"runtime": map[string]any{"log_level": "debug"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var base, dropIn map[string]any
	if _, err := toml.DecodeFile(args[1], &base); err != nil {
		t.Fatal(err)
	}
	if _, err := toml.DecodeFile(filepath.Join(args[3], "50-settings.conf"), &dropIn); err != nil {
		t.Fatal(err)
	}
	if got := at(t, base, "crio", "api", "listen"); got != node.CRISocket {
		t.Errorf("CRI-O listens on %v", got)
	}
	if got := at(t, base, "crio", "image", "pause_image"); got != "203.0.113.1:5000/pause:1" {
		t.Errorf("pause image %v", got)
	}
	if got := at(t, dropIn, "crio", "runtime", "log_level"); got != "debug" {
		t.Errorf("the setting is %v", got)
	}
	// A start without the setting removes it again.
	if _, err := node.CRIOArguments("/bin/pinns", nil); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(args[3], "50-settings.conf")); err != nil || strings.Contains(string(data), "debug") {
		t.Errorf("the drop-in file is %q, %v", data, err)
	}
	network := readYAML(t, filepath.Join(node.Dir, "cni", "10-pods.conflist"))
	plugins, _ := network["plugins"].([]any)
	if len(plugins) != 1 || !strings.Contains(strings.ReplaceAll(string(must(yaml.Marshal(plugins))), "\n", " "), "10.244.1.0/24") {
		t.Errorf("pod network %v", network)
	}
}

// readContainerd returns what a node's containerd is configured with.
func readContainerd(t *testing.T, node *Node, version2 bool, settings map[string]any) (config map[string]any) {
	t.Helper()
	args, err := node.ContainerdArguments("/bin/shim", version2, settings)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := toml.DecodeFile(args[1], &config); err != nil {
		t.Fatal(err)
	}
	return config
}

func TestContainerdConfiguration(t *testing.T) {
	t.Parallel()
	_, nodes := rendered(t)
	node := nodes[1]
	settings := map[string]any{"debug": map[string]any{"level": "debug"}}
	dropping := readContainerd(t, node, false, DropUnpackedBlobs(settings))
	for _, c := range []struct {
		want any
		keys []string
	}{
		{true, []string{"plugins", containerdImages, "discard_unpacked_layers"}},
		{"203.0.113.1:5000/pause:1", []string{"plugins", containerdImages, "pinned_images", "sandbox"}}, // what was there stays
		{"debug", []string{"debug", "level"}},
		{true, []string{"plugins", containerdRuntime, "restrict_oom_score_adj"}},
		{"/run/containerd/containerd.sock", []string{"grpc", "address"}},
	} {
		if got := at(t, dropping, c.keys...); got != c.want {
			t.Errorf("%v is %v, want %v", c.keys, got, c.want)
		}
	}
	if got := at(t, readContainerd(t, node, false, settings), "plugins", containerdImages, "discard_unpacked_layers"); got != false {
		t.Error("a start without the setting drops blobs")
	}
	for _, registry := range []string{"203.0.113.1:5000", "docker.io"} {
		text, err := os.ReadFile(filepath.Join(node.Dir, "certs.d", registry, "hosts.toml"))
		if err != nil || !strings.Contains(string(text), `[host."http://203.0.113.1:5000"]`) {
			t.Errorf("%s: %s, %v", registry, text, err)
		}
	}
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

func TestSharedConfiguration(t *testing.T) {
	t.Parallel()
	c, _ := rendered(t)
	var registries struct {
		Search   []string `toml:"unqualified-search-registries"`
		Registry []struct {
			Prefix   string
			Location string
			Insecure bool
		}
	}
	if _, err := toml.DecodeFile(c.path("config", "registries.conf"), &registries); err != nil {
		t.Fatal(err)
	}
	// Docker Hub's images come from the cluster's registry, and short names refer
	// to Docker Hub.
	for i, prefix := range []string{"", "docker.io"} {
		if len(registries.Registry) != 3 || !registries.Registry[i].Insecure || registries.Registry[i].Prefix != prefix ||
			registries.Registry[i].Location != c.Registry || !slices.Equal(registries.Search, []string{"docker.io"}) {
			t.Fatalf("registries %+v", registries)
		}
	}
	// Registries of this machine, on any port.
	if own := registries.Registry[2]; !own.Insecure || own.Prefix != "" || own.Location != "203.0.113.2" {
		t.Errorf("registries of this machine: %+v", own)
	}
	if _, err := c.RegistryArguments("/storage"); err != nil {
		t.Fatal(err)
	}
	got := readYAML(t, c.path("config", "registry.yaml"))
	if addr := at(t, got, "http", "addr"); addr != c.Registry {
		t.Errorf("the registry listens on %v", addr)
	}
	if root := at(t, got, "storage", "filesystem", "rootdirectory"); root != "/storage" {
		t.Errorf("the registry stores in %v", root)
	}
}

// TestVersionsOfContainerd: 1.7 has a configuration in its form, made of the same settings.
func TestVersionsOfContainerd(t *testing.T) {
	t.Parallel()
	_, nodes := rendered(t)
	settings := DropUnpackedBlobs(nil)
	old, recent := readContainerd(t, nodes[0], true, settings), readContainerd(t, nodes[1], false, settings)
	cri := func(keys ...string) []string { return append([]string{"plugins", containerdCRI}, keys...) }
	for _, check := range []struct {
		config map[string]any
		want   any
		keys   []string
	}{
		{old, int64(2), []string{"version"}},
		{old, true, cri("containerd", "discard_unpacked_layers")},
		{old, "overlayfs", cri("containerd", "snapshotter")},
		{old, "/bin/shim", cri("containerd", "runtimes", "runc", "runtime_path")},
		{old, "203.0.113.1:5000/pause:1", cri("sandbox_image")},
		{old, filepath.Join(nodes[0].Dir, "certs.d"), cri("registry", "config_path")},
		{old, CNIDir(), cri("cni", "bin_dir")},
		{old, nodes[0].networkDir(), cri("cni", "conf_dir")},
		{old, true, cri("restrict_oom_score_adj")},
		{old, "0", cri("stream_server_port")},
		{old, nil, []string{"plugins", containerdImages}},
		{old, nil, []string{"plugins", containerdRuntime}},
		{recent, int64(3), []string{"version"}},
		{recent, true, []string{"plugins", containerdImages, "discard_unpacked_layers"}},
		{recent, "/bin/shim", []string{"plugins", containerdRuntime, "containerd", "runtimes", "runc", "runtime_path"}},
	} {
		if got := at(t, check.config, check.keys...); got != check.want {
			t.Errorf("version %v: %v is %v, want %v", check.config["version"], check.keys, got, check.want)
		}
	}
}

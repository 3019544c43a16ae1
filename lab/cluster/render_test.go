package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// rendered returns a cluster of two nodes that consists of handles and files
// only.
func rendered(t *testing.T, config Config) *Cluster {
	t.Helper()
	config.Dir = t.TempDir()
	config.Nodes = 2
	if err := config.complete(); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(&config); err != nil {
		t.Fatal(err)
	}
	c := newCluster(config, netip.MustParsePrefix("203.0.113.0/24"))
	if err := c.writeShared(); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.nodes {
		if err := os.MkdirAll(filepath.Join(node.Dir(), "cni"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
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
	c := rendered(t, Config{})
	node := c.Node("n2")
	args, err := node.kubeletArguments(Component{Config: map[string]any{
		"nodeStatusMaxImages":       -1,
		"nodeStatusReportFrequency": "10s",
		"serializeImagePulls":       true,
		"fieldOfTheFuture":          map[string]any{"minSize": "1Mi"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--hostname-override=n2", "--node-ip=203.0.113.12"} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
	got := readYAML(t, filepath.Join(node.Dir(), "kubelet.yaml"))
	for key, want := range map[string]any{
		"nodeStatusMaxImages":       -1.0,
		"nodeStatusReportFrequency": "10s",
		"serializeImagePulls":       true, // replaces a default
		"cgroupDriver":              "cgroupfs",
		"kind":                      "KubeletConfiguration",
		"containerRuntimeEndpoint":  "unix://" + node.CRISocket(),
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
	c := rendered(t, Config{})
	node := c.Node("n1")
	args, err := node.runtimeArguments(Component{Config: map[string]any{
		"crio": map[string]any{"runtime": map[string]any{"log_level": "debug"}},
	}})
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
	if got := at(t, base, "crio", "api", "listen"); got != node.CRISocket() {
		t.Errorf("CRI-O listens on %v", got)
	}
	if got := at(t, base, "crio", "image", "pause_image"); got != "203.0.113.1:5000/pause:1" {
		t.Errorf("pause image %v", got)
	}
	if got := at(t, dropIn, "crio", "runtime", "log_level"); got != "debug" {
		t.Errorf("the setting is %v", got)
	}
	// A start without the setting removes it again.
	if _, err := node.runtimeArguments(Component{}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(args[3], "50-settings.conf")); err != nil || strings.Contains(string(data), "debug") {
		t.Errorf("the drop-in file is %q, %v", data, err)
	}
	network := readYAML(t, filepath.Join(node.Dir(), "cni", "10-pods.conflist"))
	plugins, _ := network["plugins"].([]any)
	if len(plugins) != 1 || !strings.Contains(strings.ReplaceAll(string(must(yaml.Marshal(plugins))), "\n", " "), "10.244.1.0/24") {
		t.Errorf("pod network %v", network)
	}
}

// readContainerd returns what a node's containerd is configured with.
func readContainerd(t *testing.T, node *Node, settings Component) (config map[string]any) {
	t.Helper()
	args, err := node.runtimeArguments(settings)
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
	c := rendered(t, Config{ContainerRuntimes: map[string]ContainerRuntime{"n2": Containerd}})
	if got := c.Node("n1").Runtime().Name() + ", " + c.Node("n2").Runtime().Name(); got != "n1 crio, n2 containerd" {
		t.Errorf("the runtimes are %s", got)
	}
	node := c.Node("n2")
	if !strings.HasSuffix(node.Runtime().binary(Component{Flavour: Patched}), "/tools/containerd") {
		t.Errorf("it runs %s", node.Runtime().binary(Component{}))
	}
	settings := Component{Config: map[string]any{"debug": map[string]any{"level": "debug"}}}
	DropUnpackedBlobs(&settings)
	dropping := readContainerd(t, node, settings)
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
	if got := at(t, readContainerd(t, node, Component{}), "plugins", containerdImages, "discard_unpacked_layers"); got != false {
		t.Error("a start without the setting drops blobs")
	}
	// The host sees the socket that the node has below its own /run.
	if want := filepath.Join(node.Dir(), "root/run/containerd/containerd.sock"); node.CRISocket() != want {
		t.Errorf("the socket is %s, want %s", node.CRISocket(), want)
	}
	for _, registry := range []string{"203.0.113.1:5000", "docker.io"} {
		text, err := os.ReadFile(filepath.Join(node.Dir(), "certs.d", registry, "hosts.toml"))
		if err != nil || !strings.Contains(string(text), `[host."http://203.0.113.1:5000"]`) {
			t.Errorf("%s: %s, %v", registry, text, err)
		}
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	condition := func(kind string, status bool) *runtimeapi.RuntimeCondition {
		return &runtimeapi.RuntimeCondition{Type: kind, Status: status, Message: "why"}
	}
	both := []*runtimeapi.RuntimeCondition{condition("RuntimeReady", true), condition("NetworkReady", true)}
	for want, conditions := range map[string][]*runtimeapi.RuntimeCondition{
		"":                  append(both, condition("ContainerdHasNoDeprecationWarnings", false)),
		"NetworkReady: why": {both[0], condition("NetworkReady", false)},
		"does not report whether it is NetworkReady": {both[0]},
	} {
		if err := ready(conditions); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", conditions, err, want)
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
	c := rendered(t, Config{})
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
			registries.Registry[i].Location != c.Registry().Address || !slices.Equal(registries.Search, []string{"docker.io"}) {
			t.Fatalf("registries %+v", registries)
		}
	}
	// Registries of this machine, on any port.
	if own := registries.Registry[2]; !own.Insecure || own.Prefix != "" || own.Location != "203.0.113.2" {
		t.Errorf("registries of this machine: %+v", own)
	}
	if _, err := c.registryArguments(Component{}); err != nil {
		t.Fatal(err)
	}
	got := readYAML(t, c.path("config", "registry.yaml"))
	if addr := at(t, got, "http", "addr"); addr != c.Registry().Address {
		t.Errorf("the registry listens on %v", addr)
	}
	if root := at(t, got, "storage", "filesystem", "rootdirectory"); root != c.Registry().Storage {
		t.Errorf("the registry stores in %v", root)
	}
}

func TestSchedulerConfiguration(t *testing.T) {
	t.Parallel()
	c := rendered(t, Config{})
	profiles := []any{map[string]any{"schedulerName": "layers"}}
	extenders := []map[string]any{{
		"urlPrefix": "https://$(ADDRESS):1/x", "weight": 2, "$(PKI)": []any{"$(KUBECONFIG)", "$(OTHER)", true},
		"tlsConfig": map[string]any{"caFile": "$(PKI)/ca.crt"},
	}}
	if _, err := c.schedulerArguments(Component{Config: map[string]any{"profiles": profiles, "extenders": extenders}}); err != nil {
		t.Fatal(err)
	}
	if extenders[0]["urlPrefix"] != "https://$(ADDRESS):1/x" {
		t.Error("the settings were changed: of another start, the address may be another")
	}
	got := readYAML(t, c.path("config", "scheduler.yaml"))
	if list, _ := got["profiles"].([]any); len(list) != 1 {
		t.Errorf("profiles %v", got["profiles"])
	}
	// Values that are known once the cluster exists; those of add-ons and unknown ones stay.
	want := []any{map[string]any{
		"urlPrefix": "https://203.0.113.1:1/x", "weight": 2.0, "$(PKI)": []any{"$(KUBECONFIG)", "$(OTHER)", true},
		"tlsConfig": map[string]any{"caFile": c.path("pki", "ca.crt")},
	}}
	if !reflect.DeepEqual(got["extenders"], want) {
		t.Errorf("extenders %v, want %v", got["extenders"], want)
	}
	if at(t, got, "leaderElection", "leaderElect") != false {
		t.Error("the only scheduler waits for an election")
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	has := func(c *Cluster) bool {
		args, err := c.apiServerArguments(Component{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(args, "--audit-log-path="+c.AuditLog())
	}
	if has(rendered(t, Config{})) {
		t.Error("an audit log without a policy")
	}
	if !has(rendered(t, Config{AuditPolicy: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"})) {
		t.Error("no audit log with a policy")
	}
}

func TestConfigForComponentsWithoutConfiguration(t *testing.T) {
	t.Parallel()
	c := rendered(t, Config{})
	settings := Component{Config: map[string]any{"x": 1}}
	for name, arguments := range map[string]func(Component) ([]string, error){
		"etcd":                    c.etcdArguments,
		"registry":                c.registryArguments,
		"kube-apiserver":          c.apiServerArguments,
		"kube-controller-manager": c.controllerManagerArguments,
	} {
		if _, err := arguments(settings); err == nil {
			t.Errorf("%s: settings that nothing reads were accepted", name)
		}
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	old := "from an earlier run\n"
	var lines []string
	for i := range 30 {
		lines = append(lines, "line "+string(rune('a'+i)))
	}
	if err := os.WriteFile(path, []byte(old+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tail(path, int64(len(old)))
	if !strings.HasSuffix(got, lines[29]) || strings.Contains(got, lines[17]) || !strings.Contains(got, lines[18]) {
		t.Errorf("not the last twelve lines: %q", got)
	}
	if got := tail(path, int64(len(old)+len(strings.Join(lines, "\n"))+1)); got != "" {
		t.Errorf("%q from a run that wrote nothing", got)
	}
	if strings.Contains(tail(path, 0), old) {
		t.Error("more lines than wanted")
	}
}

// TestVersionsOfContainerd: each has programs of its own, and 1.7 a configuration in its form, made
// of the same settings.
func TestVersionsOfContainerd(t *testing.T) {
	t.Parallel()
	c := rendered(t, Config{ContainerRuntimes: map[string]ContainerRuntime{"n1": Containerd17, "n2": Containerd24}})
	var settings Component
	DropUnpackedBlobs(&settings)
	old, recent := readContainerd(t, c.Node("n1"), settings), readContainerd(t, c.Node("n2"), settings)
	cri := func(keys ...string) []string { return append([]string{"plugins", containerdCRI}, keys...) }
	for _, check := range []struct {
		config map[string]any
		want   any
		keys   []string
	}{
		{old, int64(2), []string{"version"}},
		{old, true, cri("containerd", "discard_unpacked_layers")},
		{old, "overlayfs", cri("containerd", "snapshotter")},
		{old, c.Tool("containerd-shim-runc-v2-1.7"), cri("containerd", "runtimes", "runc", "runtime_path")},
		{old, "203.0.113.1:5000/pause:1", cri("sandbox_image")},
		{old, filepath.Join(c.Node("n1").Dir(), "certs.d"), cri("registry", "config_path")},
		{old, cniDir(), cri("cni", "bin_dir")},
		{old, c.Node("n1").networkDir(), cri("cni", "conf_dir")},
		{old, true, cri("restrict_oom_score_adj")},
		{old, "0", cri("stream_server_port")},
		{old, nil, []string{"plugins", containerdImages}},
		{old, nil, []string{"plugins", containerdRuntime}},
		{recent, int64(3), []string{"version"}},
		{recent, true, []string{"plugins", containerdImages, "discard_unpacked_layers"}},
		{recent, c.Tool("containerd-shim-runc-v2-2.4"), []string{"plugins", containerdRuntime, "containerd", "runtimes", "runc", "runtime_path"}},
	} {
		if got := at(t, check.config, check.keys...); got != check.want {
			t.Errorf("version %v: %v is %v, want %v", check.config["version"], check.keys, got, check.want)
		}
	}
	for node, program := range map[string]string{"n1": "/tools/containerd-1.7", "n2": "/tools/containerd-2.4"} {
		if got := c.Node(node).Runtime().binary(Component{Flavour: Patched}); !strings.HasSuffix(got, program) {
			t.Errorf("%s runs %s", node, got)
		}
	}
}

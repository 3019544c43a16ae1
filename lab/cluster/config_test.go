package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseBandwidth(t *testing.T) {
	t.Parallel()
	good := map[string]uint64{
		"0":       0,
		"100mbit": 100_000_000,
		"1Gbit":   1_000_000_000,
		"1.5gbit": 1_500_000_000,
		"64kbit":  64_000,
		"8000bit": 8_000,
	}
	for in, want := range good {
		if got, err := ParseBandwidth(in); err != nil || got != want {
			t.Errorf("ParseBandwidth(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "100", "mbit", "-1mbit", "100 mbit", "100mb", "100mbit/s", "1e20gbit", "NaNmbit", "infgbit"} {
		if got, err := ParseBandwidth(in); err == nil {
			t.Errorf("ParseBandwidth(%q) = %d, want an error", in, got)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	c := Config{}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	if c.Name != "demo" || c.Nodes != 3 || c.Flavour != Stock || c.Bandwidth != 0 {
		t.Errorf("defaults: %+v", c)
	}
	if c.Dir != "/var/lib/layer-locality/demo" || c.LogDir != c.Dir+"/log" {
		t.Errorf("folders %s and %s", c.Dir, c.LogDir)
	}
	if want := filepath.Join("_build", "bin"); !strings.HasSuffix(c.BinDir, want) {
		t.Errorf("binaries in %s, want the repository's %s", c.BinDir, want)
	}
	if _, err := os.Stat(filepath.Join(c.BinDir, "..", "..", "versions.env")); err != nil {
		t.Errorf("binaries in %s, which is in no repository: %v", c.BinDir, err)
	}
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		config Config
		want   string
	}{
		"name with a slash":    {Config{Name: "a/b"}, "cluster name"},
		"name with capitals":   {Config{Name: "Demo"}, "cluster name"},
		"name too long":        {Config{Name: strings.Repeat("a", 33)}, "cluster name"},
		"negative nodes":       {Config{Nodes: -1}, "-1 nodes"},
		"too many nodes":       {Config{Nodes: maxNodes + 1}, "201 nodes"},
		"no nodes, and some":   {Config{ControlPlaneOnly: true, Nodes: 1}, "with 1 nodes"},
		"only what is left":    {Config{ControlPlaneOnly: true, RuntimeOnly: true}, "or RuntimeOnly"},
		"bandwidth of a snail": {Config{Bandwidth: 7}, "bandwidth of 7"},
		"nodes alone slow":     {Config{BetweenNodes: 8_000}, "8000 bits per second between nodes"},
		"unknown flavour":      {Config{Flavour: "vanilla"}, `flavour "vanilla"`},
		"component flavour":    {Config{Kubelet: Component{Flavour: "x"}}, `kubelet: flavour "x"`},
		"unknown runtime":      {Config{ContainerRuntime: "docker"}, `container runtime "docker": want crio, containerd, containerd-1.7 or containerd-2.4`},
		"runtime of a node":    {Config{ContainerRuntimes: map[string]ContainerRuntime{"n3": "x"}}, `container runtime "x" of n3`},
		"runtime of no node":   {Config{ContainerRuntimes: map[string]ContainerRuntime{"n4": Containerd}}, "there is no such node, they are n1 to n3"},
		"socket path too long": {Config{Dir: "/tmp/" + strings.Repeat("d", 100)}, "limit is 107"},
		"colon in the folder":  {Config{Dir: "/tmp/a:b"}, "colons"},
		"space in the folder":  {Config{Dir: "/tmp/a b"}, "white space"},
	}
	for name, test := range cases {
		if err := test.config.complete(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
}

// A control plane alone has no nodes, and needs none of their programs.
func TestControlPlaneOnly(t *testing.T) {
	t.Parallel()
	c := Config{ControlPlaneOnly: true, BinDir: t.TempDir()}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	made := newCluster(c, netip.Prefix{})
	if len(made.nodes) != 0 || made.APIServer() == nil || made.Scheduler() == nil {
		t.Errorf("%d nodes, of the control machine %d", len(made.nodes), len(made.control))
	}
	if p := find(c.components(), "kubelet"); p != nil {
		t.Errorf("it has a %s", p.Name())
	}
	err := c.preflight()
	if err == nil || !strings.Contains(err.Error(), "etcd") || strings.Contains(err.Error(), "pinns") || strings.Contains(err.Error(), "runc") {
		t.Errorf("what is missing: %v", err)
	}
}

// Symbolic links in the folder's path are resolved: inside a machine they may
// lead elsewhere.
func TestConfigResolvesLinks(t *testing.T) {
	t.Parallel()
	real := t.TempDir()
	real, err := filepath.EvalSymlinks(real)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	c := Config{Dir: filepath.Join(link, "not", "there")}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(real, "not", "there"); c.Dir != want {
		t.Errorf("folder %s, want %s", c.Dir, want)
	}
}

func TestMissingBinaryTellsHowToBuildIt(t *testing.T) {
	t.Parallel()
	tool := watcher()
	tool.Name, tool.Tool = "layer-tool", true
	c := Config{BinDir: t.TempDir(), Flavour: Patched, Addons: []Addon{watcher(), tool}}
	for name, test := range map[string]struct {
		binary    string
		component Component
		want      string
	}{
		"of the flavour":          {"kubelet", Component{}, "'scripts/build.sh patched kubelet'"},
		"of its own flavour":      {"crio", Component{Flavour: Stock}, "'scripts/build.sh stock crio'"},
		"a tool":                  {"layer-tool", Component{}, "'scripts/build.sh tools layer-tool'"},
		"of the only one":         {"layer-watcher", Component{Flavour: Stock}, "'scripts/build.sh patched layer-watcher'"},
		"the same in all":         {"etcd", Component{}, "'scripts/build.sh tools etcd'"},
		"given by path":           {"kubelet", Component{Binary: "/nowhere/kubelet"}, "/nowhere/kubelet"},
		"a folder, not a program": {"kubelet", Component{Binary: c.BinDir}, "not a program"},
	} {
		if err := find(c.components(), test.binary).checkBinary(test.component); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
	path := filepath.Join(c.BinDir, "patched", "kubelet")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := find(c.components(), "kubelet").checkBinary(Component{}); err != nil {
		t.Errorf("a binary that is there: %v", err)
	}
}

// The gate follows the flavour, so that a component can be restarted as stock,
// which does not have the gate, and back.
func TestGates(t *testing.T) {
	t.Parallel()
	c := Config{Flavour: Patched}
	for name, test := range map[string]struct {
		binary    string
		component Component
		want      string
	}{
		"patched kubelet":   {"kubelet", Component{}, "--feature-gates=NodeStatusImageLayers=true"},
		"patched apiserver": {"kube-apiserver", Component{}, "--feature-gates=NodeStatusImageLayers=true"},
		"patched scheduler": {"kube-scheduler", Component{}, ""},
		"CRI-O":             {"crio", Component{}, ""},
		"stock kubelet":     {"kubelet", Component{Flavour: Stock}, ""},
		"switched off": {
			"kubelet", Component{FeatureGates: map[string]bool{LayersGate: false}},
			"--feature-gates=NodeStatusImageLayers=false",
		},
		"others, in order": {
			"kube-scheduler", Component{FeatureGates: map[string]bool{"B": false, "A": true}},
			"--feature-gates=A=true,B=false",
		},
	} {
		if got := strings.Join(find(c.components(), test.binary).gates(test.component), " "); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestCloneIsIndependent(t *testing.T) {
	t.Parallel()
	original := Component{
		Args: []string{"a"}, Env: []string{"E=1"},
		FeatureGates: map[string]bool{"A": true}, Config: map[string]any{"x": 1},
	}
	changed := original.clone()
	changed.Args[0], changed.Env[0] = "b", "E=2"
	changed.FeatureGates["A"], changed.Config["x"] = false, 2
	if original.Args[0] != "a" || original.Env[0] != "E=1" || !original.FeatureGates["A"] || original.Config["x"] != 1 {
		t.Errorf("a change of the clone reached the original: %+v", original)
	}
}

// Everything that is missing is reported at once.
func TestPreflightReportsAll(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		c := Config{BinDir: t.TempDir()}
		if err := c.preflight(); err == nil || !strings.Contains(err.Error(), "needs root") {
			t.Errorf("error %v without root", err)
		}
		return
	}
	c := Config{BinDir: t.TempDir(), Flavour: Stock}
	err := c.preflight()
	if err == nil {
		t.Fatal("no error without any binary")
	}
	for _, name := range slices.Concat([]string{"pinns", "runc", "registry", "crio"},
		[]string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}) {
		if !strings.Contains(err.Error(), " "+name+"'") {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
}

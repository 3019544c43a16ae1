package cluster

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/layer-locality/layer-locality/lab/cluster/folder"
)

// Flavour is the build of CRI-O and the Kubernetes components.
type Flavour string

// The flavours are the folders of _build/bin.
const (
	Stock   Flavour = "stock"   // unmodified upstream source
	Patched Flavour = "patched" // with this repository's patches
)

// ContainerRuntime is the container runtime of a node.
type ContainerRuntime string

// The container runtimes.
const (
	CRIO       ContainerRuntime = "crio"
	Containerd ContainerRuntime = "containerd"
	// Older and newer than Containerd.
	Containerd17 ContainerRuntime = "containerd-1.7"
	Containerd24 ContainerRuntime = "containerd-2.4"
)

// Config describes a cluster. The zero value is a cluster of three stock nodes.
type Config struct {
	// Name is unique among clusters on one machine. Default "demo".
	Name string `json:"name"`
	// Dir is the folder with everything of the cluster. Default
	// /var/lib/layer-locality/<Name>. If it exists, it must belong to a cluster.
	Dir string `json:"dir"`
	// LogDir holds the log files. Default Dir/log, which Stop removes with
	// Dir; any other folder is left alone.
	LogDir string `json:"logDir"`
	// Nodes is the number of nodes, named n1, n2, ... Default 3.
	Nodes int `json:"nodes"`
	// Bandwidth limits what each node can download, in bits per second. 0: no
	// limit. See ParseBandwidth.
	Bandwidth uint64 `json:"bandwidth"`
	// BetweenNodes, if it is not 0, limits what each node can download from other nodes. Bandwidth
	// limits the rest then, which has to be set.
	BetweenNodes uint64 `json:"betweenNodes,omitempty"`
	// RuntimeOnly leaves out the control plane and the kubelets: a registry
	// and nodes with a container runtime.
	RuntimeOnly bool `json:"runtimeOnly,omitempty"`
	// ControlPlaneOnly leaves out the nodes, for those that exist only as objects
	// (addons.Kwok). Nodes has to be 0 then.
	ControlPlaneOnly bool `json:"controlPlaneOnly,omitempty"`

	// Flavour of every component that does not set its own. Default Stock.
	Flavour Flavour `json:"flavour"`
	// BinDir holds the folders stock, patched and tools with the binaries.
	// Default: _build/bin of the repository around the working directory.
	BinDir string `json:"binDir"`

	// Lab takes registry, runc and layer-resolver from BinDir/lab, where they are sooner: a small registry instead of
	// the distribution project's, the system's runc instead of the pinned one, and a layer-resolver with Kubernetes'
	// versions of libraries instead of its own.
	Lab bool `json:"lab,omitempty"`

	// ContainerRuntime of the nodes, default CRIO; ContainerRuntimes those of single nodes, by
	// their names. Containerd is upstream's in every flavour.
	ContainerRuntime  ContainerRuntime            `json:"containerRuntime,omitempty"`
	ContainerRuntimes map[string]ContainerRuntime `json:"containerRuntimes,omitempty"`

	// Settings of the components. Runtime, the container runtime, and Kubelet are
	// for every node. For a single node, use PerNode or restart its components
	// with other settings.
	Etcd              Component `json:"etcd"`
	Registry          Component `json:"registry"`
	APIServer         Component `json:"apiServer"`
	ControllerManager Component `json:"controllerManager"`
	Scheduler         Component `json:"scheduler"`
	Runtime           Component `json:"runtime"`
	Kubelet           Component `json:"kubelet"`

	// Addons run beside the control plane. Package addons has those of this
	// repository.
	Addons []Addon `json:"addons,omitempty"`

	// PerNode, if set, changes the settings that a node starts with.
	PerNode func(node string, runtime, kubelet *Component) `json:"-"`

	// AuditPolicy is an audit.k8s.io/v1 Policy in YAML. With it, the apiserver
	// writes its audit log to Cluster.AuditLog.
	AuditPolicy string `json:"auditPolicy,omitempty"`

	// Logf, if set, gets progress messages.
	Logf func(format string, args ...any) `json:"-"`
}

// Component holds the settings of one process, on top of what the cluster sets.
type Component struct {
	// Flavour chooses among the builds of CRI-O and the Kubernetes components.
	// Default Config.Flavour.
	Flavour Flavour `json:"flavour,omitempty"`
	// Binary is the program to run instead of the one Flavour names.
	Binary string `json:"binary,omitempty"`
	// Args follow the cluster's own arguments, so they take precedence.
	Args []string `json:"args,omitempty"`
	// Env holds further "KEY=value" pairs.
	Env []string `json:"env,omitempty"`
	// FeatureGates of a Kubernetes component. LayersGate is on in patched
	// kube-apiservers and kubelets unless it is set here. Stock binaries refuse
	// to start with a gate that they do not have.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// Config holds fields of the component's configuration file, which replace
	// the cluster's: KubeletConfiguration, KubeSchedulerConfiguration, or for
	// CRI-O and containerd their TOML tables ({"crio": {"image": {...}}}), merged field by field.
	// The other components have no configuration file.
	Config map[string]any `json:"config,omitempty"`
}

// LayersGate is the feature gate of Node.status.images[].layers. Only patched
// binaries have it.
const LayersGate = "NodeStatusImageLayers"

const (
	maxNodes = 200
	// The kernel's sockaddr_un holds 108 bytes, a terminating zero included.
	maxSocketPath = 107
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// complete fills in defaults and checks what can be checked without the host.
func (c *Config) complete() error {
	c.Name = cmp.Or(c.Name, "demo")
	if !nameForm.MatchString(c.Name) {
		return fmt.Errorf("cluster name %q: want lower-case letters, digits and dashes, at most 32", c.Name)
	}
	switch {
	case c.ControlPlaneOnly && (c.RuntimeOnly || c.Nodes != 0):
		return fmt.Errorf("ControlPlaneOnly leaves out the nodes: with %d nodes, or RuntimeOnly, nothing is meant by it", c.Nodes)
	case c.ControlPlaneOnly:
	case c.Nodes == 0:
		c.Nodes = 3
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return fmt.Errorf("%d nodes: want 1 to %d", c.Nodes, maxNodes)
	}
	if c.Bandwidth != 0 && c.Bandwidth < 8_000 {
		return fmt.Errorf("a bandwidth of %d bits per second: want at least 8000, or 0 for no limit", c.Bandwidth)
	}
	if c.BetweenNodes != 0 && (c.Bandwidth == 0 || c.BetweenNodes < 8_000) {
		return fmt.Errorf("%d bits per second between nodes, %d from elsewhere: want at least 8000 of both, or 0 of the first", c.BetweenNodes, c.Bandwidth)
	}
	if err := c.checkRuntimes(); err != nil {
		return err
	}
	if err := c.checkAddons(); err != nil {
		return err
	}
	c.Flavour = cmp.Or(c.Flavour, Stock)
	for _, p := range c.components() {
		switch flavour := cmp.Or(p.settings.Flavour, c.Flavour); flavour {
		case Stock, Patched:
		default:
			return fmt.Errorf("%s: flavour %q: want %s or %s", p.name, flavour, Stock, Patched)
		}
	}
	dir, err := folder.Resolve(cmp.Or(c.Dir, folder.Default(c.Name)))
	if err != nil {
		return err
	}
	c.Dir = dir
	if strings.ContainsFunc(c.Dir, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`:,"'\*?[`, r) }) {
		return fmt.Errorf("folder %q: white space, quotes, colons, commas and wildcards do not work in the configuration of the components", c.Dir)
	}
	for _, kind := range c.kinds() {
		if socket := filepath.Join(c.Dir, fmt.Sprintf("n%d", c.Nodes), kind.socket); len(socket) > maxSocketPath {
			return fmt.Errorf("folder %s: socket path %s has %d bytes, the kernel's limit is %d; choose a shorter folder",
				c.Dir, socket, len(socket), maxSocketPath)
		}
	}
	if c.LogDir == "" {
		c.LogDir = filepath.Join(c.Dir, "log")
	} else if c.LogDir, err = filepath.Abs(c.LogDir); err != nil {
		return err
	}
	if c.BinDir == "" {
		if c.BinDir, err = findBinDir(); err != nil {
			return err
		}
	} else if c.BinDir, err = filepath.Abs(c.BinDir); err != nil {
		return err
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	return nil
}

// runtimes are the container runtimes that a node can have.
var runtimes = map[ContainerRuntime]*containerRuntime{
	CRIO: &crio, Containerd: containerd(""), Containerd17: containerd("-1.7"), Containerd24: containerd("-2.4"),
}

// checkRuntimes fills in and checks the container runtimes of the nodes.
func (c *Config) checkRuntimes() error {
	c.ContainerRuntime = cmp.Or(c.ContainerRuntime, CRIO)
	for node, runtime := range c.ContainerRuntimes {
		if !slices.Contains(c.nodeNames(), node) {
			return fmt.Errorf("container runtime of %s: there is no such node, they are n1 to n%d", node, c.Nodes)
		}
		if runtimes[runtime] == nil {
			return fmt.Errorf("container runtime %q of %s: want %s", runtime, node, runtimeNames())
		}
	}
	if runtimes[c.ContainerRuntime] == nil {
		return fmt.Errorf("container runtime %q: want %s", c.ContainerRuntime, runtimeNames())
	}
	return nil
}

// runtimeNames lists the container runtimes for people.
func runtimeNames() string {
	return fmt.Sprintf("%s, %s, %s or %s", CRIO, Containerd, Containerd17, Containerd24)
}

// nodeNames are the names of the nodes; of one as long as their number is not filled in.
func (c *Config) nodeNames() []string {
	n := c.Nodes
	if n == 0 && !c.ControlPlaneOnly {
		n = 1
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i+1)
	}
	return names
}

// kind returns the container runtime of a node.
func (c *Config) kind(node string) *containerRuntime {
	return runtimes[cmp.Or(c.ContainerRuntimes[node], c.ContainerRuntime, CRIO)]
}

// kinds returns the container runtimes of the nodes, each once.
func (c *Config) kinds() []*containerRuntime {
	var kinds []*containerRuntime
	for _, node := range c.nodeNames() {
		if kind := c.kind(node); !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// findBinDir returns the BinDir of the repository that contains the working
// directory.
func findBinDir() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "versions.env")); err == nil {
			return filepath.Join(dir, "_build", "bin"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no layer-locality repository at or above %s: name the folder with the binaries", start)
		}
	}
}

// ParseBandwidth reads a rate as tc(8) writes it: a number with one of the
// units bit, kbit, mbit and gbit (powers of 1000), "0" for no limit. The
// result is in bits per second.
func ParseBandwidth(s string) (uint64, error) {
	if s == "0" {
		return 0, nil
	}
	number := strings.TrimRightFunc(strings.ToLower(s), unicode.IsLetter)
	unit, ok := map[string]float64{"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[strings.ToLower(s[len(number):])]
	value, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || value <= 0 || value*unit > 1e12 {
		return 0, fmt.Errorf(`bandwidth %q: want a number with bit, kbit, mbit or gbit, as in "100mbit", or 0 for no limit`, s)
	}
	return uint64(value * unit), nil
}

package cluster

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/layer-locality/layer-locality/lab/cluster/render"
)

// entry describes a component. To run another component, add an entry to
// Cluster.entries or, if it runs on every node, to Node.entries.
type entry struct {
	// name of the component, its program and its log.
	name string
	// settings of the first start; those of a node go through Config.PerNode.
	settings Component
	// build is the folder of BinDir with the program. "" means that of the
	// flavour.
	build string
	// layersGate is set if patched builds have LayersGate.
	layersGate bool
	// user and groups of the client certificate in the kubeconfig; without a
	// user there is none.
	user   string
	groups []string
	// arguments writes the configuration files and returns the command line.
	arguments func(Component) ([]string, error)
	// healthy checks once whether the component serves.
	healthy func(context.Context) error
	env     []string
	// stdout, if set, is the file for standard output, which then does not go into
	// the log.
	stdout string
}

// entries are the components of the control machine. Those after kube-apiserver
// need it and start side by side.
func (c *Cluster) entries() []entry {
	all := []entry{{
		name: "registry", build: c.config.labOr(tools), settings: c.config.Registry,
		arguments: func(settings Component) ([]string, error) {
			args, err := c.files.RegistryArguments(c.Registry().Storage)
			return args, errors.Join(err, noConfig(settings))
		},
		healthy: func(ctx context.Context) error { return c.get(ctx, "http://"+c.Registry().Address+"/v2/") },
		env:     []string{"OTEL_TRACES_EXPORTER=none"},
		stdout:  c.accessLog(),
	}}
	if c.config.RuntimeOnly {
		return all
	}
	all = append(all, entry{
		name: "etcd", build: tools, settings: c.config.Etcd,
		arguments: fixed(func() []string { return render.EtcdArguments(c.etcdHealth()) }),
		healthy:   func(ctx context.Context) error { return c.get(ctx, c.etcdHealth()+"/health") },
	}, entry{
		name: "kube-apiserver", settings: c.config.APIServer, layersGate: true,
		arguments: fixed(c.files.APIServerArguments),
		healthy:   func(ctx context.Context) error { return c.get(ctx, c.secureURL("443")+"/readyz") },
	}, entry{
		name: "kube-controller-manager", settings: c.config.ControllerManager,
		user:      "system:kube-controller-manager",
		arguments: fixed(func() []string { return c.files.ControllerManagerArguments(c.ControllerManager().kubeconfig()) }),
		healthy:   func(ctx context.Context) error { return c.get(ctx, c.secureURL("10257")+"/healthz") },
	}, entry{
		name: "kube-scheduler", settings: c.config.Scheduler,
		user: "system:kube-scheduler",
		arguments: func(settings Component) ([]string, error) {
			return c.files.SchedulerArguments(c.Scheduler().kubeconfig(), expandAll(c, settings.Config).(map[string]any))
		},
		healthy: func(ctx context.Context) error { return c.get(ctx, c.SchedulerURL()+"/healthz") },
	})
	for i := range c.config.Addons {
		all = append(all, c.config.Addons[i].entry(c))
	}
	return all
}

// entries are the components of a node: its container runtime and, unless
// RuntimeOnly is set, its kubelet.
func (n *Node) entries() []entry {
	config, runtime := &n.cluster.config, n.kind
	all := []entry{{
		name: runtime.name, settings: config.Runtime, build: runtime.build,
		arguments: func(settings Component) ([]string, error) { return runtime.arguments(n, settings) },
		healthy:   n.runtimeHealthy,
		env:       slices.Concat(n.cluster.files.StorageEnv(), runtime.env),
	}}
	if config.RuntimeOnly {
		return all
	}
	return append(all, entry{
		name: "kubelet", settings: config.Kubelet, layersGate: true,
		user: "system:node:" + n.Name, groups: []string{"system:nodes"},
		arguments: func(settings Component) ([]string, error) {
			return n.files().KubeletArguments(n.Kubelet().kubeconfig(), settings.Config)
		},
		healthy: n.kubeletHealthy,
	})
}

// fixed returns the arguments of a component that has no configuration file.
func fixed(arguments func() []string) func(Component) ([]string, error) {
	return func(settings Component) ([]string, error) { return arguments(), noConfig(settings) }
}

func noConfig(settings Component) error {
	if len(settings.Config) > 0 {
		return errors.New("it has no configuration file: use Args")
	}
	return nil
}

// newCluster creates the handles. It starts nothing.
func newCluster(config Config, subnet netip.Prefix) *Cluster {
	c := &Cluster{config: config}
	c.files = render.Cluster{
		Dir: config.Dir, Runc: config.program(config.labOr(tools), "runc"),
		AuditPolicy: config.AuditPolicy, AuditLog: c.AuditLog(),
	}
	for _, e := range c.entries() {
		c.control = append(c.control, &Process{entry: e, cluster: c, machine: control})
	}
	for _, name := range config.nodeNames() {
		node := &Node{Name: name, cluster: c, kind: config.kind(name)}
		for _, e := range node.entries() {
			node.processes = append(node.processes, &Process{entry: e, cluster: c, machine: node.Name})
		}
		c.nodes = append(c.nodes, node)
	}
	c.place(subnet)
	return c
}

// place assigns addresses in the subnet to the control machine and the nodes.
func (c *Cluster) place(subnet netip.Prefix) {
	c.subnet = subnet
	if !subnet.IsValid() {
		return
	}
	c.files.Registry, c.files.Address, c.files.HostAddress = c.Registry().Address, c.Address(), c.HostAddress()
	for i, node := range c.nodes {
		node.Address = host(subnet, 11+i).Addr()
		node.PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24)
	}
}

// processes returns all components, those of the control machine first.
func (c *Cluster) processes() []*Process {
	all := slices.Clone(c.control)
	for _, node := range c.nodes {
		all = append(all, node.processes...)
	}
	return all
}

// find returns the process with that name, or nil if there is none.
func find(processes []*Process, name string) *Process {
	i := slices.IndexFunc(processes, func(p *Process) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	return processes[i]
}

// components returns a handle on each component, of nodes only the first of each name: what can
// be checked before there is a cluster.
func (c *Config) components() []*Process {
	all := newCluster(*c, netip.Prefix{})
	processes := slices.Clone(all.control)
	for _, node := range all.nodes {
		for _, p := range node.processes {
			if find(processes, p.name) == nil {
				processes = append(processes, p)
			}
		}
	}
	return processes
}

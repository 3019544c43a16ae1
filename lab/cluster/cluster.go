package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/machine"
	"github.com/layer-locality/layer-locality/lab/cluster/render"
)

const (
	// control is the machine of the control plane and the registry.
	control = "control"
	// serviceIP is that of the apiserver, and valid inside the cluster only.
	serviceIP = "10.96.0.1"
	// schedulerPort is kube-scheduler's own default.
	schedulerPort = "10259"
)

// ErrRunning is returned for a folder whose cluster is up or belongs to a
// process that still runs.
var ErrRunning = errors.New("the cluster is running")

// Cluster is a running cluster. Its methods may be called concurrently, but one
// process or node must not be started or stopped by two callers at a time.
type Cluster struct {
	config  Config
	subnet  netip.Prefix
	files   render.Cluster
	control []*Process // of the control machine, in the order of entries
	nodes   []*Node
	guests  []*Guest
}

// Registry is the location of the cluster's image registry.
type Registry struct {
	// Address is host:port, reachable from the nodes and from this machine over
	// plain HTTP. Only the nodes' side is subject to Config.Bandwidth. Nodes also
	// find its images under docker.io: "busybox" is the image that was pushed to
	// host:port/library/busybox:latest.
	Address string
	// AccessLog has a line in Apache's combined format for every request.
	AccessLog string
	// Storage is the registry's root folder.
	Storage string
}

// Open returns a handle on the cluster in the folder, no matter who started it.
func Open(dir string) (*Cluster, error) {
	dir, err := folder.Resolve(dir)
	if err != nil {
		return nil, err
	}
	s, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no cluster in %s: %w", dir, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	if !s.Ready {
		return nil, fmt.Errorf("the cluster in %s is not up: its start has not finished or has failed", dir)
	}
	if s.Config.Logf == nil {
		s.Config.Logf = func(string, ...any) {}
	}
	return newCluster(s.Config, s.Subnet), nil
}

// Detach lets the cluster outlive the calling process: from now on it has no
// owner, and Clean, or Stop on any handle, ends it.
func (c *Cluster) Detach() error {
	return c.update(func(s *state) { s.Owner = machine.Process{} })
}

// Stop ends every process of the cluster and removes everything that it made,
// including the contents of Config.Dir.
func (c *Cluster) Stop(ctx context.Context) error {
	unlock, err := folder.Lock(c.config.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(c.Close(), folder.Remove(ctx, c.config.Dir, folder.Nothing))
}

// Close closes the handle's connections. The cluster keeps running.
func (c *Cluster) Close() error {
	var errs []error
	for _, node := range c.nodes {
		errs = append(errs, node.close())
	}
	return errors.Join(errs...)
}

// Clean removes the cluster in the folder, or what a killed process left of
// one. It returns ErrRunning if the cluster belongs to another process that
// still runs. Without a cluster in the folder it does nothing.
func Clean(ctx context.Context, dir string) error {
	dir, err := folder.Resolve(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(statePath(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := folder.Lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody else removed it
	}
	if err != nil {
		return err
	}
	if s.Owner.Alive() && s.Owner.PID != os.Getpid() {
		return fmt.Errorf("%w in %s: it belongs to process %d, which ends it", ErrRunning, dir, s.Owner.PID)
	}
	return folder.Remove(ctx, dir, folder.Nothing)
}

// Name of the cluster.
func (c *Cluster) Name() string { return c.config.Name }

// Dir is the folder with everything of the cluster.
func (c *Cluster) Dir() string { return c.config.Dir }

// LogDir is the folder with the log files of all components.
func (c *Cluster) LogDir() string { return c.config.LogDir }

// Tool returns the path of a program that is the same in every flavour: crictl,
// critest, runc, ...
func (c *Cluster) Tool(name string) string { return filepath.Join(c.config.BinDir, tools, name) }

// Nodes are all nodes, n1 first.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Node returns the node with that name, or nil if there is none.
func (c *Cluster) Node(name string) *Node {
	for _, node := range c.nodes {
		if node.Name == name {
			return node
		}
	}
	return nil
}

// APIServer is the kube-apiserver, nil in a cluster without a control plane.
func (c *Cluster) APIServer() *Process { return find(c.control, "kube-apiserver") }

// Etcd is the etcd of the kube-apiserver, nil in a cluster without a control plane.
func (c *Cluster) Etcd() *Process { return find(c.control, "etcd") }

// ControllerManager is the kube-controller-manager, nil in a cluster without a
// control plane.
func (c *Cluster) ControllerManager() *Process { return find(c.control, "kube-controller-manager") }

// Scheduler is the kube-scheduler, nil in a cluster without a control plane.
func (c *Cluster) Scheduler() *Process { return find(c.control, "kube-scheduler") }

// SchedulerURL returns the URL, without a path, at which the scheduler serves
// its metrics and the debug endpoints of its plugins. It accepts the clients
// that the apiserver accepts.
func (c *Cluster) SchedulerURL() string {
	return c.secureURL(schedulerPort)
}

// Registry returns the location of the image registry.
func (c *Cluster) Registry() Registry {
	return Registry{
		Address:   c.Address().String() + ":5000",
		AccessLog: c.accessLog(),
		Storage:   c.path("registry"),
	}
}

func (c *Cluster) accessLog() string { return filepath.Join(c.config.LogDir, "registry-access.log") }

// AuditLog is the path of the apiserver's audit log, one JSON object a line. It
// is written if Config.AuditPolicy is set.
func (c *Cluster) AuditLog() string { return filepath.Join(c.config.LogDir, "audit.log") }

// Kubeconfig is the path of a kubeconfig with all rights.
func (c *Cluster) Kubeconfig() string { return c.path("admin.kubeconfig") }

// RESTConfig returns a client configuration with all rights.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	// A test may send many requests. The cluster is on this machine, so proxies of
	// the environment must not be used.
	config.QPS, config.Burst = 200, 400
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return config, nil
}

// Client returns a client with all rights.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Address returns the address of the control machine, on which its components
// and add-ons listen.
func (c *Cluster) Address() netip.Addr { return host(c.subnet, 1).Addr() }

// HostAddress returns the address of this machine in the cluster's network. The
// whole cluster can reach servers that listen on it. Nodes use plain HTTP for
// registries on it, on any port.
func (c *Cluster) HostAddress() netip.Addr { return host(c.subnet, 2).Addr() }

// secureURL returns the https URL of a server on the control machine, by its
// port.
func (c *Cluster) secureURL(port string) string {
	return "https://" + net.JoinHostPort(c.Address().String(), port)
}

// etcdHealth returns the URL at which etcd serves its health and metrics, and
// nothing else.
func (c *Cluster) etcdHealth() string { return "http://" + c.Address().String() + ":2381" }

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.config.Dir}, elements...)...)
}

func (c *Cluster) update(change func(*state)) error {
	s, err := readState(c.config.Dir)
	if err != nil {
		return err
	}
	change(s)
	return folder.WriteJSON(statePath(c.config.Dir), s)
}

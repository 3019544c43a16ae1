package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/layer-locality/layer-locality/cluster/images"
	"github.com/layer-locality/layer-locality/cluster/internal/machine"
	"github.com/layer-locality/layer-locality/cluster/internal/pki"
)

const (
	// control is the machine of the control plane and the registry.
	control = "control"
	etcdURL = "http://127.0.0.1:2379"
	// Services and pods have addresses inside the cluster only.
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1"
	// schedulerPort is kube-scheduler's own default.
	schedulerPort = "10259"
)

// ErrRunning is returned for a folder whose cluster is up or belongs to a
// process that still runs.
var ErrRunning = errors.New("the cluster is running")

// Cluster is a running cluster. Its methods may be called concurrently, but
// one process or node may be started and stopped from one place at a time only.
type Cluster struct {
	config  Config
	subnet  netip.Prefix
	nodes   []*Node
	process map[string]*Process // those of the control machine, by name
}

// Registry tells where the cluster's image registry is.
type Registry struct {
	// Address is host:port, reachable from the nodes and from this machine
	// over plain HTTP. Only the nodes' side is subject to Config.Bandwidth.
	// Nodes also find its images under docker.io: "busybox" is what was pushed
	// to host:port/library/busybox:latest.
	Address string
	// AccessLog has a line in Apache's combined format for every request.
	AccessLog string
	// Storage is the registry's root folder.
	Storage string
}

// Start starts a cluster and returns when all nodes are Ready and pods can be
// created. The cluster belongs to the calling process until Stop or Detach.
//
// What a killed process left in the same folder is removed first. If the start
// fails or ctx ends, all of it is undone; only the log files stay, which the
// error names, until the next Start or Clean. An existing cluster in the
// folder gives ErrRunning.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if err := config.preflight(); err != nil {
		return nil, err
	}
	unlock, err := claim(ctx, config.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// After claim, which may have ended a cluster that used some.
	if err := machine.CheckInotify(config.inotifyInstances()); err != nil {
		return nil, errors.Join(err, remove(context.WithoutCancel(ctx), config.Dir, 0))
	}

	defer func() {
		if err != nil {
			config.Logf("start failed, cleaning up")
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
			defer cancel()
			err = errors.Join(err, remove(cleanup, config.Dir, keepLogs))
		}
	}()
	c, err := prepare(&config)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, c.update(func(s *state) { s.Ready = true })
}

// Open gives a handle on the cluster in the folder, whoever started it.
func Open(dir string) (*Cluster, error) {
	dir, err := resolve(dir)
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

// Detach lets the cluster outlive the calling process: from now on it belongs
// to nobody, and Clean or Stop on any handle ends it.
func (c *Cluster) Detach() error {
	return c.update(func(s *state) { s.Owner = machine.Process{} })
}

// Stop ends every process of the cluster and removes all that it made, also
// what is in Config.Dir.
func (c *Cluster) Stop(ctx context.Context) error {
	unlock, err := lock(c.config.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(c.Close(), remove(ctx, c.config.Dir, 0))
}

// Close gives up the handle's connections. The cluster goes on.
func (c *Cluster) Close() error {
	var errs []error
	for _, node := range c.nodes {
		errs = append(errs, node.close())
	}
	return errors.Join(errs...)
}

// Clean removes the cluster in the folder, or what a killed process left of
// one. A cluster that belongs to another, running process gives ErrRunning.
// Without a cluster there it does nothing.
func Clean(ctx context.Context, dir string) error {
	dir, err := resolve(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(statePath(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := lock(dir)
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
	return remove(ctx, dir, 0)
}

// claim locks the folder and empties it of a cluster that nobody owns.
func claim(ctx context.Context, dir string) (_ func(), err error) {
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	s, err := readState(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Never remove what is not a cluster's.
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			return nil, errors.Join(err, fmt.Errorf("folder %s holds other files: choose one that is empty or does not exist", dir))
		}
		return unlock, nil
	case err != nil:
		return nil, err
	case s.Owner.Alive():
		return nil, fmt.Errorf("%w in %s: it belongs to process %d", ErrRunning, dir, s.Owner.PID)
	case s.Ready && s.Owner == machine.Process{}:
		if r, err := readRecord(dir, control); err == nil && r.Alive() {
			return nil, fmt.Errorf("%w in %s: stop it first", ErrRunning, dir)
		}
	}
	return unlock, remove(ctx, dir, keepDir)
}

// prepare writes what identifies the cluster, before anything is started.
func prepare(config *Config) (*Cluster, error) {
	owner, err := machine.Self()
	if err != nil {
		return nil, err
	}
	if err := writeJSON(statePath(config.Dir), &state{Config: *config, Owner: owner}); err != nil {
		return nil, err
	}
	for _, dir := range []string{config.LogDir, filepath.Join(config.Dir, "state")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return newCluster(*config, netip.Prefix{}), nil
}

// newCluster makes the handles; it starts nothing.
func newCluster(config Config, subnet netip.Prefix) *Cluster {
	c := &Cluster{config: config, process: map[string]*Process{}}
	for i := range config.Nodes {
		c.nodes = append(c.nodes, &Node{Name: fmt.Sprintf("n%d", i+1), cluster: c})
	}
	c.place(subnet)
	add := func(name string, arguments func(Component) ([]string, error), healthy func(context.Context) error) *Process {
		p := &Process{cluster: c, machine: control, name: name, arguments: arguments, healthy: healthy}
		c.process[name] = p
		return p
	}
	registry := add("registry", c.registryArguments, func(ctx context.Context) error {
		return get(ctx, plain, "http://"+c.Registry().Address+"/v2/")
	})
	registry.separate = c.accessLog()
	registry.env = []string{"OTEL_TRACES_EXPORTER=none"}
	for _, node := range c.nodes {
		node.crio = &Process{
			cluster: c, machine: node.Name, name: "crio", env: append(c.storageEnv(), "TMPDIR=/var/lib/crio"),
			arguments: node.crioArguments, healthy: node.crioHealthy,
		}
	}
	if config.RuntimeOnly {
		return c
	}
	add("etcd", c.etcdArguments, func(ctx context.Context) error {
		return get(ctx, plain, c.etcdHealth()+"/health")
	})
	add("kube-apiserver", c.apiServerArguments, func(ctx context.Context) error {
		return c.getSecure(ctx, "443", "/readyz")
	})
	add("kube-controller-manager", c.controllerManagerArguments, func(ctx context.Context) error {
		return c.getSecure(ctx, "10257", "/healthz")
	})
	add("kube-scheduler", c.schedulerArguments, func(ctx context.Context) error {
		return c.getSecure(ctx, schedulerPort, "/healthz")
	})
	if config.Resolver != nil {
		add("layer-resolver", c.resolverArguments, func(ctx context.Context) error {
			return get(ctx, plain, "http://"+net.JoinHostPort(c.address().String(), resolverProbes)+"/readyz")
		})
	}
	for _, node := range c.nodes {
		node.kubelet = &Process{
			cluster: c, machine: node.Name, name: "kubelet",
			arguments: node.kubeletArguments, healthy: node.kubeletHealthy,
		}
	}
	return c
}

// place gives the parts their addresses in the subnet.
func (c *Cluster) place(subnet netip.Prefix) {
	c.subnet = subnet
	if !subnet.IsValid() {
		return
	}
	for i, node := range c.nodes {
		node.Address = host(subnet, 11+i).Addr()
		node.PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24)
	}
}

// start brings the parts up, side by side where they do not need each other.
func (c *Cluster) start(ctx context.Context) error {
	begin := time.Now()
	say := func(format string, args ...any) {
		c.config.Logf("%5.1f s  %s", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	if _, err := c.boot(ctx, control); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	say("network %s", c.subnet)
	if err := c.writeShared(); err != nil {
		return err
	}
	if !c.config.RuntimeOnly {
		if err := c.issueCertificates(); err != nil {
			return err
		}
	}

	group, ctx := errgroup.WithContext(ctx)
	apiReady := make(chan struct{})
	group.Go(func() error {
		if err := c.process["registry"].Start(ctx, with(c.config.Registry)); err != nil {
			return err
		}
		if err := c.pushPause(ctx); err != nil {
			return err
		}
		say("registry %s serves", c.Registry().Address)
		return nil
	})
	if !c.config.RuntimeOnly {
		group.Go(func() error {
			return c.startControlPlane(ctx, say, func() { close(apiReady) })
		})
	}
	for i, node := range c.nodes {
		group.Go(func() error {
			if err := c.addNode(ctx, i); err != nil {
				return err
			}
			crio, kubelet := c.config.CRIO.clone(), c.config.Kubelet.clone()
			if c.config.PerNode != nil {
				c.config.PerNode(node.Name, &crio, &kubelet)
			}
			if err := node.crio.Start(ctx, with(crio)); err != nil {
				return err
			}
			say("%s: CRI-O serves", node.Name)
			if c.config.RuntimeOnly {
				return nil
			}
			select {
			case <-apiReady:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := node.kubelet.Start(ctx, with(kubelet)); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, startTimeout)
			defer cancel()
			if err := c.WaitNodeReady(ctx, node.Name); err != nil {
				return err
			}
			say("%s: Ready", node.Name)
			return nil
		})
	}
	return group.Wait()
}

// startControlPlane calls ready when the apiserver takes nodes.
func (c *Cluster) startControlPlane(ctx context.Context, say func(string, ...any), ready func()) error {
	if err := c.process["etcd"].Start(ctx, with(c.config.Etcd)); err != nil {
		return err
	}
	if err := c.APIServer().Start(ctx, with(c.config.APIServer)); err != nil {
		return err
	}
	say("kube-apiserver serves")
	if err := c.bootstrap(ctx); err != nil {
		return err
	}
	ready()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.ControllerManager().Start(ctx, with(c.config.ControllerManager)) })
	group.Go(func() error { return c.Scheduler().Start(ctx, with(c.config.Scheduler)) })
	group.Go(func() error { return c.waitServiceAccount(ctx) })
	what := "kube-controller-manager and kube-scheduler"
	if c.config.Resolver != nil {
		group.Go(func() error { return c.Resolver().Start(ctx, with(*c.config.Resolver)) })
		what = "kube-controller-manager, kube-scheduler and layer-resolver"
	}
	if err := group.Wait(); err != nil {
		return err
	}
	say("%s serve", what)
	return nil
}

// boot makes a machine and records it.
func (c *Cluster) boot(ctx context.Context, name string) (*machine.Machine, error) {
	state := c.path(name)
	if err := os.MkdirAll(filepath.Join(state, "cni"), 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(c.config.LogDir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m, err := machine.Boot(ctx, machine.Spec{
		Name: name, State: state, Keep: c.config.Dir, Cgroup: cgroup(c.config.Dir) + "/" + name, Log: log,
	})
	if err != nil {
		return nil, err
	}
	return m, writeRecord(c.config.Dir, name, record{Process: m.Process})
}

// machine finds a machine that was booted, by this process or another.
func (c *Cluster) machine(name string) (*machine.Machine, error) {
	r, err := readRecord(c.config.Dir, name)
	if err != nil {
		return nil, err
	}
	return &machine.Machine{Process: r.Process, Keep: c.config.Dir}, nil
}

// connect chooses the cluster's network and connects the control machine, with
// the bridge, to the host.
func (c *Cluster) connect() error {
	unlock, err := machine.LockNetwork()
	if err != nil {
		return err
	}
	defer unlock()
	used, err := machine.UsedPrefixes()
	if err != nil {
		return err
	}
	subnet, err := freeSubnet(used)
	if err != nil {
		return err
	}
	c.place(subnet)
	if err := c.update(func(s *state) { s.Subnet = subnet }); err != nil {
		return err
	}
	m, err := c.machine(control)
	if err != nil {
		return err
	}
	return m.ConnectHost(identifier(c.config.Dir), host(subnet, 2),
		host(subnet, 1), netip.MustParsePrefix(serviceIP+"/32"))
}

// addNode boots node i and connects it.
func (c *Cluster) addNode(ctx context.Context, i int) error {
	node := c.nodes[i]
	m, err := c.boot(ctx, node.Name)
	if err != nil {
		return err
	}
	bridge, err := c.machine(control)
	if err != nil {
		return err
	}
	address := netip.PrefixFrom(node.Address, c.subnet.Bits())
	if err := bridge.Connect(m, node.Name, address, c.address()); err != nil {
		return fmt.Errorf("%s: %w", node.Name, err)
	}
	if err := bridge.Route(node.PodCIDR, node.Address); err != nil {
		return fmt.Errorf("%s: %w", node.Name, err)
	}
	for _, other := range c.nodes {
		if other != node {
			if err := m.Route(other.PodCIDR, other.Address); err != nil {
				return fmt.Errorf("%s: %w", node.Name, err)
			}
		}
	}
	if c.config.Bandwidth == 0 {
		return nil
	}
	return node.SetBandwidth(c.config.Bandwidth)
}

// issueCertificates makes the authority and one identity for each part.
func (c *Cluster) issueCertificates() error {
	ca, err := pki.NewAuthority(c.path("pki"), "layer-locality "+c.config.Name)
	if err != nil {
		return err
	}
	if _, _, err := ca.KeyPair("service-account"); err != nil {
		return err
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	addresses := []net.IP{c.address().AsSlice(), net.ParseIP(serviceIP), net.IPv4(127, 0, 0, 1)}
	if err := ca.Server("control", "control", names, addresses); err != nil {
		return err
	}
	if err := ca.Client("apiserver-kubelet", apiServerUser); err != nil {
		return err
	}
	server := "https://" + c.address().String()
	if err := ca.Kubeconfig(c.Kubeconfig(), server, "admin", "system:masters"); err != nil {
		return err
	}
	if err := ca.Kubeconfig(c.path("pki", "controller-manager.kubeconfig"), server, "system:kube-controller-manager"); err != nil {
		return err
	}
	if err := ca.Kubeconfig(c.path("pki", "scheduler.kubeconfig"), server, "system:kube-scheduler"); err != nil {
		return err
	}
	if c.config.Resolver != nil {
		if err := ca.Kubeconfig(c.path("pki", "layer-resolver.kubeconfig"), server, resolverUser, resolverGroups...); err != nil {
			return err
		}
	}
	for _, node := range c.nodes {
		if err := os.MkdirAll(node.Dir(), 0o755); err != nil {
			return err
		}
		path := filepath.Join(node.Dir(), "kubelet.kubeconfig")
		if err := ca.Kubeconfig(path, server, "system:node:"+node.Name, "system:nodes"); err != nil {
			return err
		}
	}
	return nil
}

const apiServerUser = "kube-apiserver-kubelet-client"

// bootstrap adds what the default RBAC rules leave to whoever sets a cluster
// up: the apiserver may talk to kubelets, for logs and exec. And what the
// resolver needs.
func (c *Cluster) bootstrap(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "layer-locality:apiserver-kubelet-client"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: apiServerUser}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("grant the apiserver access to kubelets: %w", err)
	}
	if c.config.Resolver == nil {
		return nil
	}
	return c.installResolver(ctx, client)
}

func (c *Cluster) pauseImage() string { return c.Registry().Address + "/pause:1" }

func (c *Cluster) pushPause(ctx context.Context) error {
	image, err := images.Build(images.Image{})
	if err != nil {
		return err
	}
	_, err = images.Push(ctx, c.pauseImage(), image)
	return err
}

// Name of the cluster.
func (c *Cluster) Name() string { return c.config.Name }

// Dir holds everything of the cluster.
func (c *Cluster) Dir() string { return c.config.Dir }

// LogDir holds the log files of all components.
func (c *Cluster) LogDir() string { return c.config.LogDir }

// Tool is the path of a program of the build that is the same in every flavour:
// crictl, critest, runc, ...
func (c *Cluster) Tool(name string) string { return filepath.Join(c.config.BinDir, "tools", name) }

// Nodes are all nodes, n1 first.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Node finds a node by name, nil if there is none.
func (c *Cluster) Node(name string) *Node {
	for _, node := range c.nodes {
		if node.Name == name {
			return node
		}
	}
	return nil
}

// APIServer is the kube-apiserver, nil in a cluster without a control plane.
func (c *Cluster) APIServer() *Process { return c.process["kube-apiserver"] }

// ControllerManager is the kube-controller-manager, nil in a cluster without a
// control plane.
func (c *Cluster) ControllerManager() *Process { return c.process["kube-controller-manager"] }

// Scheduler is the kube-scheduler, nil in a cluster without a control plane.
func (c *Cluster) Scheduler() *Process { return c.process["kube-scheduler"] }

// SchedulerURL is where the scheduler serves its metrics and what its plugins
// have to say, without a path. It knows the clients that the apiserver knows.
func (c *Cluster) SchedulerURL() string {
	return "https://" + net.JoinHostPort(c.address().String(), schedulerPort)
}

// Registry tells where the image registry is.
func (c *Cluster) Registry() Registry {
	return Registry{
		Address:   c.address().String() + ":5000",
		AccessLog: c.accessLog(),
		Storage:   c.path("registry"),
	}
}

func (c *Cluster) accessLog() string { return filepath.Join(c.config.LogDir, "registry-access.log") }

// AuditLog is the apiserver's audit log, one JSON object a line. It is written
// if Config.AuditPolicy is set.
func (c *Cluster) AuditLog() string { return filepath.Join(c.config.LogDir, "audit.log") }

// Kubeconfig is the path of a kubeconfig with all rights.
func (c *Cluster) Kubeconfig() string { return c.path("admin.kubeconfig") }

// RESTConfig is the client configuration with all rights.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	// One test may ask often; and the cluster is on this machine, so that no
	// proxy of the environment may come in between.
	config.QPS, config.Burst = 200, 400
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return config, nil
}

// Client is a client with all rights.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// WaitNodeReady waits until the node is Ready and takes pods. It gives up when
// the node's kubelet has ended.
func (c *Cluster) WaitNodeReady(ctx context.Context, name string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return poll(ctx, "node "+name, func(ctx context.Context) error {
		if here := c.Node(name); here != nil && here.kubelet.PID() == 0 {
			return hopeless{fmt.Errorf("%s does not run; its log is %s%s", here.kubelet.Name(), here.kubelet.Log(), tail(here.kubelet.Log(), 0))}
		}
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return errors.New("not Ready: " + condition.Message)
			}
		}
		if len(node.Status.Conditions) == 0 {
			return errors.New("no status yet")
		}
		for _, taint := range node.Spec.Taints {
			return errors.New("it has the taint " + taint.ToString())
		}
		return nil
	})
}

// WaitPodRunning waits until all containers of the pod are ready.
func (c *Cluster) WaitPodRunning(ctx context.Context, namespace, name string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return poll(ctx, "pod "+namespace+"/"+name, func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		why := fmt.Sprintf("%s on node %q", pod.Status.Phase, pod.Spec.NodeName)
		for _, container := range pod.Status.ContainerStatuses {
			if waiting := container.State.Waiting; waiting != nil {
				why += fmt.Sprintf(", container %s: %s %s", container.Name, waiting.Reason, waiting.Message)
			}
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Status == corev1.ConditionFalse && condition.Message != "" {
				why += ", " + condition.Message
			}
		}
		return errors.New(why)
	})
}

// waitServiceAccount waits for what every pod of the default namespace needs.
func (c *Cluster) waitServiceAccount(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return poll(ctx, "service account default/default", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// hopeless is an error that no waiting will change.
type hopeless struct{ error }

// poll calls f until it gives no error, or a hopeless one. Without a deadline in ctx it gives up
// after two minutes.
func poll(ctx context.Context, what string, f func(context.Context) error) error {
	if _, ok := ctx.Deadline(); !ok {
		limited, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		ctx = limited
	}
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if errors.As(err, new(hopeless)) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// address is that of the control machine: apiserver and registry.
func (c *Cluster) address() netip.Addr { return host(c.subnet, 1).Addr() }

// etcdHealth is where etcd answers whether it is healthy, and nothing else but
// metrics.
func (c *Cluster) etcdHealth() string { return "http://" + c.address().String() + ":2381" }

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.config.Dir}, elements...)...)
}

func (c *Cluster) update(change func(*state)) error {
	s, err := readState(c.config.Dir)
	if err != nil {
		return err
	}
	change(s)
	return writeJSON(statePath(c.config.Dir), s)
}

// plain connects directly, whatever proxies the environment names.
var plain = &http.Transport{DisableKeepAlives: true}

// getSecure asks a server of the control plane.
func (c *Cluster) getSecure(ctx context.Context, port, path string) error {
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	secure := plain.Clone()
	secure.TLSClientConfig = &tls.Config{RootCAs: roots}
	return get(ctx, secure, "https://"+net.JoinHostPort(c.address().String(), port)+path)
}

// get succeeds if the server answers with 200.
func get(ctx context.Context, transport *http.Transport, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", address, response.Status, body)
	}
	return nil
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/cluster/machine"
)

// Start starts a cluster and returns when all nodes are Ready and pods can be
// created. The cluster belongs to the calling process until Stop or Detach.
//
// Start first removes what a killed process left in the same folder. If the
// start fails or ctx ends, everything is undone; only the log files that the
// error names stay until the next Start or Clean, and not if ctx was canceled. If there is a running cluster
// in the folder, Start returns ErrRunning.
//
// From then on, the process gets no SIGPIPE: what reads its output may end on a signal
// before the cluster is removed, as "go test" and "tee" do.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	signal.Ignore(syscall.SIGPIPE)
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
	// After claim, because claim may have ended a cluster that used some.
	if err := machine.CheckInotify(config.inotifyInstances()); err != nil {
		return nil, errors.Join(err, folder.Remove(context.WithoutCancel(ctx), config.Dir, folder.Nothing))
	}

	defer func() {
		if err != nil {
			config.Logf("start failed, cleaning up")
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			keep := folder.KeepLogs
			if errors.Is(ctx.Err(), context.Canceled) {
				keep = folder.Nothing // whoever ended it does not ask why
			}
			err = errors.Join(err, folder.Remove(cleanup, config.Dir, keep))
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

// claim locks the folder, and removes a cluster in it that has no owner.
func claim(ctx context.Context, dir string) (_ func(), err error) {
	unlock, err := folder.Lock(dir)
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
		// Never remove files that do not belong to a cluster.
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
	return unlock, folder.Remove(ctx, dir, folder.KeepDir)
}

// prepare writes the files that identify the cluster, before anything is
// started.
func prepare(config *Config) (*Cluster, error) {
	owner, err := machine.Self()
	if err != nil {
		return nil, err
	}
	if err := folder.WriteJSON(statePath(config.Dir), &state{Config: *config, Owner: owner}); err != nil {
		return nil, err
	}
	for _, dir := range []string{config.LogDir, filepath.Join(config.Dir, "state")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return newCluster(*config, netip.Prefix{}), nil
}

// start starts the machines and components, in parallel where they do not
// depend on each other.
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
	if err := c.files.Shared(); err != nil {
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
		if err := find(c.control, "registry").startFirst(ctx); err != nil {
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
			runtime, kubelet := c.config.Runtime.clone(), c.config.Kubelet.clone()
			if c.config.PerNode != nil {
				c.config.PerNode(node.Name, &runtime, &kubelet)
			}
			if err := node.Runtime().Start(ctx, with(runtime)); err != nil {
				return err
			}
			say("%s: %s serves", node.Name, node.kind.product)
			if c.config.RuntimeOnly {
				return nil
			}
			select {
			case <-apiReady:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := node.Kubelet().Start(ctx, with(kubelet)); err != nil {
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

// startControlPlane starts the control plane. It calls ready when the apiserver
// accepts nodes.
func (c *Cluster) startControlPlane(ctx context.Context, say func(string, ...any), ready func()) error {
	if err := find(c.control, "etcd").startFirst(ctx); err != nil {
		return err
	}
	if err := c.APIServer().startFirst(ctx); err != nil {
		return err
	}
	say("kube-apiserver serves")
	if err := c.bootstrap(ctx); err != nil {
		return err
	}
	ready()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.waitServiceAccount(ctx) })
	rest := c.control[slices.Index(c.control, c.APIServer())+1:]
	names := make([]string, len(rest))
	for i, p := range rest {
		names[i] = p.name
		group.Go(func() error { return p.startFirst(ctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	last := len(names) - 1
	say("%s and %s serve", strings.Join(names[:last], ", "), names[last])
	return nil
}

// boot creates a machine and records it.
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
		Name: name, State: state, Keep: c.config.Dir, Cgroup: folder.Cgroup(c.config.Dir) + "/" + name, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("%w; its log is %s%s", err, log.Name(), tail(log.Name(), 0))
	}
	return m, writeRecord(c.config.Dir, name, record{Process: m.Process})
}

// machine returns a machine that was booted by this process or another.
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
	subnet, err := machine.FreeSubnet()
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
	return m.ConnectHost(folder.Identifier(c.config.Dir), host(subnet, 2),
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
	if err := bridge.Connect(m, node.Name, address, c.Address()); err != nil {
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
	if c.config.BetweenNodes != 0 {
		return bridge.LimitFrom(node.Name, c.Address(), c.config.Bandwidth, c.config.BetweenNodes)
	}
	return node.SetBandwidth(c.config.Bandwidth)
}

// bootstrap adds a right that the default RBAC rules leave to the installer of
// a cluster: the apiserver may talk to kubelets, for logs and exec. It also
// installs what add-ons need.
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
	for i := range c.config.Addons {
		addon := &c.config.Addons[i]
		if err := c.install(ctx, addon); err != nil {
			return fmt.Errorf("manifests of %s: %w", addon.Name, err)
		}
	}
	return nil
}

func (c *Cluster) pushPause(ctx context.Context) error {
	image, err := images.Build(images.Image{})
	if err != nil {
		return err
	}
	_, err = images.Push(ctx, c.files.PauseImage(), image)
	return err
}

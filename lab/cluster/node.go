package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/lab/cluster/render"
)

// containerRuntime describes a container runtime to a node.
type containerRuntime struct {
	// name of the program, of the component and of its log.
	name string
	// product is the name as people write it.
	product string
	// socket of the CRI, in the node's folder.
	socket string
	// build is the folder of Config.BinDir with its program; empty for that of the flavour.
	build string
	// programs of the system that it runs, and further binaries of its build.
	programs, binaries []string
	// inotify is the number of inotify instances that one uses.
	inotify int
	env     []string
	// arguments writes a node's configuration and returns the command line.
	arguments func(*Node, Component) ([]string, error)
}

// crio describes CRI-O.
var crio = containerRuntime{
	name:     "crio",
	product:  "CRI-O",
	socket:   "crio.sock",
	programs: []string{"conmon"},
	binaries: []string{"pinns"},
	inotify:  4,
	env:      []string{"TMPDIR=/var/lib/crio"},
	arguments: func(n *Node, settings Component) ([]string, error) {
		pinns := n.cluster.config.program(n.Runtime().flavour(settings), "pinns")
		return n.files().CRIOArguments(pinns, settings.Config)
	},
}

// containerd describes a version of containerd. The names of its programs end in the suffix.
func containerd(suffix string) *containerRuntime {
	name, shim := "containerd"+suffix, "containerd-shim-runc-v2"+suffix
	return &containerRuntime{
		name:     name,
		product:  name,
		socket:   render.ContainerdSocket,
		build:    tools,
		binaries: []string{shim},
		inotify:  4,
		arguments: func(n *Node, settings Component) ([]string, error) {
			return n.files().ContainerdArguments(n.cluster.Tool(shim), name == string(Containerd17), settings.Config)
		},
	}
}

// Node is one node of a cluster.
type Node struct {
	// Name of the node, also its host name: n1, n2, ...
	Name string
	// Address on the cluster's network, reachable from the host.
	Address netip.Addr
	// PodCIDR is the network of the node's pods, reachable inside the cluster
	// only.
	PodCIDR netip.Prefix

	cluster   *Cluster
	kind      *containerRuntime
	processes []*Process

	mu  sync.Mutex
	cri *CRI
}

// CRI has the clients of a node's container runtime.
type CRI struct {
	Runtime runtimeapi.RuntimeServiceClient
	Image   runtimeapi.ImageServiceClient
	conn    *grpc.ClientConn
}

// Runtime is the node's container runtime.
func (n *Node) Runtime() *Process { return find(n.processes, n.kind.name) }

// ContainerRuntime returns which container runtime the node has.
func (n *Node) ContainerRuntime() ContainerRuntime { return ContainerRuntime(n.kind.name) }

// Kubelet is the node's kubelet, nil in a cluster without a control plane.
func (n *Node) Kubelet() *Process { return find(n.processes, "kubelet") }

// Dir returns the node's folder. Its subfolder root/ holds what the node sees
// as its own /var/lib and /var/log.
func (n *Node) Dir() string { return filepath.Join(n.cluster.config.Dir, n.Name) }

// files returns what the configuration of the node's components depends on.
func (n *Node) files() *render.Node {
	return &render.Node{
		Cluster: &n.cluster.files, Name: n.Name, Dir: n.Dir(), Address: n.Address, PodCIDR: n.PodCIDR, CRISocket: n.CRISocket(),
	}
}

// CRISocket is the path of the container runtime's socket on the host.
func (n *Node) CRISocket() string { return filepath.Join(n.Dir(), n.kind.socket) }

// CRI connects to the node's container runtime. The connection survives
// restarts of the runtime; the cluster closes it.
func (n *Node) CRI() (*CRI, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cri != nil {
		return n.cri, nil
	}
	conn, err := grpc.NewClient("unix://"+n.CRISocket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Reconnect soon after a restart.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		// The limit of the kubelet and crictl.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Runtime().Name(), err)
	}
	n.cri = &CRI{
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Image:   runtimeapi.NewImageServiceClient(conn),
		conn:    conn,
	}
	return n.cri, nil
}

func (n *Node) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cri == nil {
		return nil
	}
	defer func() { n.cri = nil }()
	return n.cri.conn.Close()
}

// SetBandwidth changes how fast the node can download, in bits per second. 0
// means no limit.
func (n *Node) SetBandwidth(bitsPerSecond uint64) error {
	control, err := n.cluster.machine(control)
	if err != nil {
		return err
	}
	return control.Limit(n.Name, bitsPerSecond)
}

// Received returns how many bytes have come over the node's link so far, with all that
// surrounds them.
func (n *Node) Received(ctx context.Context) (int64, error) {
	text, err := n.Exec(ctx, "cat", "/proc/self/net/dev")
	if err != nil {
		return 0, err
	}
	_, counters, found := strings.Cut(string(text), "eth0:")
	fields := strings.Fields(counters)
	if !found || len(fields) == 0 {
		return 0, fmt.Errorf("%s: no eth0 in /proc/self/net/dev: %s", n.Name, text)
	}
	return strconv.ParseInt(fields[0], 10, 64)
}

// Command prepares a command for Run. A program without a path is looked for
// among the tools of the build (crictl, runc), then on the system's PATH. The
// command talks to the node's container runtime and registry. If it works on
// container storage itself, it uses the node's: "crictl images", or "skopeo
// copy ... containers-storage:name:tag".
func (n *Node) Command(program string, args ...string) *exec.Cmd {
	path := program
	if !strings.Contains(program, "/") {
		if tool := n.cluster.Tool(program); isProgram(tool) {
			path = tool
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{
		"PATH=" + filepath.Dir(n.cluster.Tool("crictl")) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CRI_CONFIG_FILE=" + filepath.Join(n.Dir(), "crictl.yaml"),
	}, n.cluster.files.StorageEnv()...)
	return cmd
}

// Run runs a command made by Command inside the node and waits for it. When ctx
// ends, the command and everything it has started are killed.
func (n *Node) Run(ctx context.Context, cmd *exec.Cmd) error {
	host, err := n.cluster.machine(n.Name)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	what := n.Name + ": " + strings.Join(cmd.Args, " ")
	if err := host.Start(cmd); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Exec runs a command inside the node and returns its standard output. An
// error holds the end of its standard error.
func (n *Node) Exec(ctx context.Context, program string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := n.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := n.Run(ctx, cmd)
	if message := bytes.TrimSpace(stderr.Bytes()); err != nil && len(message) > 0 {
		err = fmt.Errorf("%w: %s", err, message[max(0, len(message)-2000):])
	}
	return stdout.Bytes(), err
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (n *Node) runtimeHealthy(ctx context.Context) error {
	cri, err := n.CRI()
	if err != nil {
		return err
	}
	status, err := cri.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	return ready(status.GetStatus().GetConditions())
}

// ready returns an error if one of the conditions is missing or false that the CRI requires. Others
// are as their runtime likes: a false one of containerd means that it has warnings.
func ready(conditions []*runtimeapi.RuntimeCondition) error {
	for _, required := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		i := slices.IndexFunc(conditions, func(c *runtimeapi.RuntimeCondition) bool { return c.GetType() == required })
		if i < 0 {
			return fmt.Errorf("the runtime does not report whether it is %s", required)
		}
		if c := conditions[i]; !c.GetStatus() {
			return errors.New(required + ": " + c.GetMessage())
		}
	}
	return nil
}

func (n *Node) kubeletHealthy(ctx context.Context) error {
	if err := n.cluster.get(ctx, fmt.Sprintf("http://%s:10248/healthz", n.Address)); err != nil {
		return err
	}
	// The port for logs, exec and configz opens separately, and possibly later.
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(n.Address.String(), "10250"))
	if err != nil {
		return err
	}
	return connection.Close()
}

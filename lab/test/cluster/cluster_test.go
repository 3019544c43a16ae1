//go:build e2e

package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/cluster/machine"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// clusters is the default folder of clusters.
var clusters = filepath.Dir(folder.Default("any"))

// made matches the paths outside of a cluster's folder that its components
// would create in their default configuration.
var made = regexp.MustCompile(`(?i)^/(run|var/lib|var/log|etc|usr/libexec|opt)/.*(crio|cri-o|cni|container|crun|runc|conmon|kube|etcd|registry|netns|nri|pods|layer-locality|ll-)`)

// hostState is the part of the host that a cluster must leave as it was.
type hostState struct {
	Files    map[string][]string // names in folders that components often write to
	Tunables map[string]string
}

func observe(t *testing.T) hostState {
	t.Helper()
	s := hostState{Files: map[string][]string{}, Tunables: map[string]string{}}
	for _, dir := range []string{
		"/run", "/run/crio", "/run/netns", "/run/containers", "/var/lib", "/var/lib/containers", "/var/lib/cni", "/var/lib/kubelet", "/var/lib/crio",
		"/var/log", "/var/log/pods", "/var/log/containers", "/etc/cni", "/etc/crio", "/etc/containers", "/etc/kubernetes", "/usr/libexec", "/opt",
	} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, entry := range entries {
			// Other programs of the host come and go meanwhile, and so do
			// other clusters.
			if path := filepath.Join(dir, entry.Name()); path != clusters && made.MatchString(path) {
				s.Files[dir] = append(s.Files[dir], entry.Name())
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if _, kind, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(kind, "cgroup") {
			s.Files["cgroup mounts"] = append(s.Files["cgroup mounts"], line)
		}
	}
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward", "kernel/hostname",
	} {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		s.Tunables[name] = string(value)
	}
	return s
}

// namespaces returns the PID namespaces of the cluster's machines, by inode.
// They are kept open, so that no other cluster gets the same numbers meanwhile.
func namespaces(t *testing.T, dir string) map[uint64]bool {
	t.Helper()
	found, err := machine.Leftovers(dir)
	if err != nil {
		t.Fatal(err)
	}
	own := namespacesOf(t, os.Getpid())
	all := map[uint64]bool{}
	for _, p := range found {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", p.PID))
		if err != nil {
			continue // it has ended
		}
		t.Cleanup(func() { file.Close() })
		if inode := inodeOf(t, int(file.Fd())); inode != own[0] {
			all[inode] = true
		}
	}
	return all
}

// namespacesOf returns the PID namespaces that a process is in, its own first.
func namespacesOf(t *testing.T, pid int) []uint64 {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // it has ended
	}
	var all []uint64
	for {
		all = append(all, inodeOf(t, fd))
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		unix.Close(fd)
		if err != nil {
			return all // this process cannot see the parent: it is the host's namespace
		}
		fd = parent
	}
}

func inodeOf(t *testing.T, fd int) uint64 {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		t.Fatal(err)
	}
	return info.Ino
}

// assertNothingLeft fails if a cluster in dir left anything behind.
func assertNothingLeft(t *testing.T, dir string, before hostState, used map[uint64]bool) {
	t.Helper()
	if len(used) == 0 {
		t.Error("no namespace was seen in use, so this check would prove nothing")
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A zombie has ended; the process that inherited it from a killed command
		// must reap it.
		if p, err := machine.Identify(pid); err != nil || !p.Alive() {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if bytes.Contains(cmdline, []byte(dir+"/")) {
			t.Errorf("process %d is left: %s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))
		}
		if slices.ContainsFunc(namespacesOf(t, pid), func(ns uint64) bool { return used[ns] }) {
			t.Errorf("process %d is left in a machine: %s", pid, cmdline)
		}
	}
	if found, err := machine.Leftovers(dir); err != nil || len(found) > 0 {
		t.Errorf("processes %v are left, %v", found, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			t.Errorf("a mount is left: %s", line)
		}
	}
	if _, err := os.Stat("/sys/class/net/" + folder.Identifier(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("link %s is left: %v", folder.Identifier(dir), err)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + folder.Identifier(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/" + folder.Identifier(dir)); err == nil || len(groups) > 0 {
		t.Errorf("cgroups are left: %v, %v", groups, err)
	}
	after := observe(t)
	for dir, names := range after.Files {
		if !slices.Equal(names, before.Files[dir]) {
			t.Errorf("%s held %v, now it holds %v", dir, before.Files[dir], names)
		}
	}
	if !maps.Equal(after.Tunables, before.Tunables) {
		t.Errorf("tunables were %v, now they are %v", before.Tunables, after.Tunables)
	}
}

// shortDir returns a folder for a cluster. The paths that t.TempDir makes are
// too long for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "ll-")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "c")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := cluster.Clean(ctx, dir); err != nil {
			t.Errorf("clean: %v", err)
		}
		if err := os.Remove(parent); err != nil {
			t.Errorf("the folder of the cluster is left: %v", err)
		}
	})
	return dir
}

// logs returns a folder for the logs of a test that failed.
func logs(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "_out", "logs", strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("component logs: %s", dir)
		}
	})
	return dir
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCluster tests everything that the library promises on one stock cluster.
func TestCluster(t *testing.T) {
	ctx := timeout(t, 15*time.Minute)
	dir := shortDir(t)
	before := observe(t)
	c, err := livetest.Start(ctx, cluster.Config{
		Name: "e2e", Dir: dir, LogDir: logs(t), Nodes: 3, Bandwidth: 200_000_000,
		AuditPolicy: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n",
		PerNode: func(node string, _, kubelet *cluster.Component) {
			if node == "n3" {
				kubelet.Config = map[string]any{"maxPods": 33}
			}
		},
		Logf: t.Logf,
	})
	check(t, err)
	used := namespaces(t, dir)
	client, err := c.Client()
	check(t, err)
	if _, err := os.Stat("/sys/class/net/" + folder.Identifier(dir)); err != nil {
		t.Errorf("the link has another name, so that it could be left unnoticed: %v", err)
	}

	t.Run("second start is refused", func(t *testing.T) {
		if _, err := livetest.Start(ctx, cluster.Config{Name: "e2e", Dir: dir}); !errors.Is(err, cluster.ErrRunning) {
			t.Errorf("error %v, want ErrRunning", err)
		}
		down := exec.Command(localcluster(t), "down", "--dir", dir)
		if out, err := down.CombinedOutput(); err == nil || !strings.Contains(string(out), "belongs to process") {
			t.Errorf("another process could remove this one's cluster: %v, %s", err, out)
		}
	})
	t.Run("pods run", func(t *testing.T) { testPods(ctx, t, c, client) })
	t.Run("identities", func(t *testing.T) { testIdentities(ctx, t, c) })
	t.Run("bandwidth", func(t *testing.T) { testBandwidth(ctx, t, c) })
	t.Run("commands in a node", func(t *testing.T) { testExec(ctx, t, c) })
	t.Run("kubelet settings", func(t *testing.T) { testKubeletSettings(ctx, t, c, client) })
	t.Run("restarts of CRI-O", func(t *testing.T) { testCRIO(ctx, t, c, client) })
	t.Run("restarts of the apiserver", func(t *testing.T) { testAPIServer(ctx, t, c, client) })
	t.Run("no zombies", func(t *testing.T) {
		for _, node := range c.Nodes() {
			out, err := node.Exec(ctx, "ps", "-e", "-o", "stat=,args=")
			check(t, err)
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "Z") {
					t.Errorf("%s: %s", node.Name, line)
				}
			}
		}
	})
	t.Run("a second cluster beside it", func(t *testing.T) { testSecondCluster(ctx, t, c) })

	maps.Copy(used, namespaces(t, dir))
	check(t, c.Stop(ctx))
	assertNothingLeft(t, dir, before, used)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// runPod pushes an image of its own name and runs it on a node; it returns the
// pod's container ID.
func runPod(ctx context.Context, t *testing.T, c *cluster.Cluster, client kubernetes.Interface, name, node string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "base", Size: 2 << 20}, {Name: name, Size: 1 << 20}}})
	check(t, err)
	pushed, err := images.Push(ctx, c.Registry().Address+"/"+name+":v1", image)
	check(t, err)
	_, err = client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			// Placed by the scheduler, not by nodeName.
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers:   []corev1.Container{{Name: "main", Image: pushed.Reference}},
		},
	}, metav1.CreateOptions{})
	check(t, err)
	check(t, c.WaitPodRunning(ctx, "default", name))
	pod, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	check(t, err)
	if pod.Spec.NodeName != node {
		t.Errorf("pod %s is on %s, want %s", name, pod.Spec.NodeName, node)
	}
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || !c.Node(node).PodCIDR.Contains(ip) {
		t.Errorf("pod %s has address %s, which is not of %s", name, pod.Status.PodIP, c.Node(node).PodCIDR)
	}
	return strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "cri-o://")
}

func testPods(ctx context.Context, t *testing.T, c *cluster.Cluster, client kubernetes.Interface) {
	for _, node := range c.Nodes() {
		runPod(ctx, t, c, client, "on-"+node.Name, node.Name)
	}
	// The node itself pulled the layers from the registry.
	access, err := os.ReadFile(c.Registry().AccessLog)
	check(t, err)
	for _, node := range c.Nodes() {
		want := node.Address.String() + ` - - [`
		if !slices.ContainsFunc(strings.Split(string(access), "\n"), func(line string) bool {
			return strings.HasPrefix(line, want) && strings.Contains(line, "GET /v2/on-"+node.Name+"/blobs/")
		}) {
			t.Errorf("no pull by %s in the registry's access log", node.Name)
		}
	}
	// One pod reaches another, on a different node, through the pods' network.
	pod, err := client.CoreV1().Pods("default").Get(ctx, "on-n2", metav1.GetOptions{})
	check(t, err)
	if _, err := c.Node("n1").Exec(ctx, "ip", "route", "get", pod.Status.PodIP); err != nil {
		t.Error(err)
	}
	// The apiserver may ask kubelets, here for a log.
	if _, err := client.CoreV1().Pods("default").GetLogs("on-n1", &corev1.PodLogOptions{}).DoRaw(ctx); err != nil {
		t.Errorf("logs of a pod: %v", err)
	}
	// A container ends on its stop signal, and is not killed after its grace
	// period.
	check(t, client.CoreV1().Pods("default").Delete(ctx, "on-n1", metav1.DeleteOptions{}))
	err = poll.Until(ctx, 100*time.Millisecond, 2*time.Minute, func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods("default").Get(ctx, "on-n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod on-n1 is still there: %w", err)
		}
		return nil
	})
	check(t, err)
}

// testIdentities: a node may act for itself and for no other node.
func testIdentities(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Node("n1").Dir(), "kubelet.kubeconfig"))
	check(t, err)
	n1, err := kubernetes.NewForConfig(config)
	check(t, err)
	patch := []byte(`{"metadata":{"labels":{"example.com/x":"y"}}}`)
	for name, allowed := range map[string]bool{"n1": true, "n2": false} {
		_, err := n1.CoreV1().Nodes().Patch(ctx, name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "status")
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("n1 writes the status of %s: %v", name, err)
		}
	}
	if _, err := n1.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("n1 lists secrets: %v", err)
	}
	config.CertData, config.KeyData = nil, nil
	anonymous, err := kubernetes.NewForConfig(config)
	check(t, err)
	if _, err := anonymous.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("anybody lists nodes: %v", err)
	}
}

// queue returns the queueing discipline of the bridge's port to a node.
func queue(ctx context.Context, t *testing.T, c *cluster.Cluster, node string) string {
	t.Helper()
	// Any process of the machine that has the bridge.
	out, err := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(c.APIServer().PID()), "--net", "tc", "-s", "qdisc", "show", "dev", node).Output()
	check(t, err)
	return string(out)
}

func testBandwidth(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	got := queue(ctx, t, c, "n2")
	if !strings.Contains(got, "tbf") || !strings.Contains(got, "rate 200Mbit") {
		t.Errorf("the link to n2 is not limited to 200 Mbit/s: %s", got)
	}
	// 3 MiB were pulled through it, and had to wait.
	if strings.Contains(got, "overlimits 0 ") {
		t.Errorf("the limit held nothing back: %s", got)
	}
	check(t, c.Node("n2").SetBandwidth(50_000_000))
	if got := queue(ctx, t, c, "n2"); !strings.Contains(got, "rate 50Mbit") {
		t.Errorf("the limit is not 50 Mbit/s: %s", got)
	}
	for range 2 {
		check(t, c.Node("n2").SetBandwidth(0))
		if got := queue(ctx, t, c, "n2"); strings.Contains(got, "tbf") {
			t.Errorf("the limit is still there: %s", got)
		}
	}
}

func testExec(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	node := c.Node("n3")
	out, err := node.Exec(ctx, "uname", "-n")
	if err != nil || strings.TrimSpace(string(out)) != "n3" {
		t.Errorf("host name %q, %v", out, err)
	}
	// CRI-O lists an image that was put into its store from outside.
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "copied", Size: 1 << 20}}})
	check(t, err)
	pushed, err := images.Push(ctx, c.Registry().Address+"/copied:v1", image)
	check(t, err)
	_, err = node.Exec(ctx, "skopeo", "--policy", filepath.Join(c.Dir(), "config", "policy.json"), "copy", "--src-tls-verify=false",
		"docker://"+pushed.Reference, "containers-storage:"+pushed.Reference)
	check(t, err)
	out, err = node.Exec(ctx, "crictl", "images", "-o", "json")
	if err != nil || !strings.Contains(string(out), pushed.Reference) {
		t.Errorf("CRI-O does not list the copied image: %s, %v", out, err)
	}
	if out, err := c.Node("n2").Exec(ctx, "crictl", "images", "-o", "json"); err != nil || strings.Contains(string(out), pushed.Reference) {
		t.Errorf("the image is on another node too: %v", err)
	}
	// Errors are returned, with the command's output.
	if _, err := node.Exec(ctx, "sh", "-c", "echo no luck >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("error %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := node.Exec(short, "sh", "-c", "sleep 300 & wait"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a command whose context ended", err)
	}
}

// configz returns the configuration that a kubelet reports.
func configz(ctx context.Context, t *testing.T, client kubernetes.Interface, node string) map[string]any {
	t.Helper()
	data, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("configz").DoRaw(ctx)
	check(t, err)
	var answer struct{ Kubeletconfig map[string]any }
	check(t, json.Unmarshal(data, &answer))
	return answer.Kubeletconfig
}

func testKubeletSettings(ctx context.Context, t *testing.T, c *cluster.Cluster, client kubernetes.Interface) {
	if got := configz(ctx, t, client, "n3")["maxPods"]; got != 33.0 {
		t.Errorf("n3 takes %v pods, want the 33 of PerNode", got)
	}
	if got := configz(ctx, t, client, "n1")["maxPods"]; got == 33.0 {
		t.Error("PerNode for n3 has reached n1")
	}
	kubelet := c.Node("n1").Kubelet()
	old := kubelet.PID()
	check(t, kubelet.Restart(ctx, func(s *cluster.Component) {
		s.Config = map[string]any{"nodeStatusMaxImages": 7, "nodeStatusReportFrequency": "20s"}
	}))
	if got := kubelet.PID(); got == old || got == 0 {
		t.Errorf("process %d before and %d after the restart", old, got)
	}
	check(t, c.WaitNodeReady(ctx, "n1"))
	if got := configz(ctx, t, client, "n1"); got["nodeStatusMaxImages"] != 7.0 || got["nodeStatusReportFrequency"] != "20s" {
		t.Errorf("configuration %v", got)
	}

	// Settings survive kill -9 and a failed start.
	check(t, kubelet.Kill(ctx))
	if kubelet.PID() != 0 {
		t.Error("a killed kubelet has a process id")
	}
	status, err := c.Status(ctx)
	check(t, err)
	if down := status.Down(); !slices.Equal(down, []string{"n1 kubelet"}) {
		t.Errorf("down: %v", down)
	}
	err = kubelet.Start(ctx, func(s *cluster.Component) { s.Args = []string{"--no-such-flag"} })
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") || !strings.Contains(err.Error(), kubelet.Log()) {
		t.Errorf("error %v, want the end of the log and its path", err)
	}
	err = kubelet.Start(ctx, func(s *cluster.Component) { s.Binary = "/nowhere/kubelet" })
	if err == nil || !strings.Contains(err.Error(), "/nowhere/kubelet") {
		t.Errorf("error %v for a binary that is not there", err)
	}
	check(t, kubelet.Start(ctx, func(s *cluster.Component) { s.Args = nil }))
	if err := kubelet.Start(ctx); err == nil || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("error %v for a second start", err)
	}
	if got := configz(ctx, t, client, "n1")["nodeStatusMaxImages"]; got != 7.0 {
		t.Errorf("nodeStatusMaxImages is %v, the setting is lost", got)
	}
	// Another handle sees the same state.
	opened, err := cluster.Open(c.Dir())
	check(t, err)
	defer opened.Close()
	if got := opened.Node("n1").Kubelet().PID(); got != kubelet.PID() {
		t.Errorf("process %d for one handle, %d for another", kubelet.PID(), got)
	}
}

func testCRIO(ctx context.Context, t *testing.T, c *cluster.Cluster, client kubernetes.Interface) {
	node := c.Node("n2")
	container := runPod(ctx, t, c, client, "survivor", "n2")
	alive := func() {
		t.Helper()
		cri, err := node.CRI()
		check(t, err)
		status, err := cri.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container})
		check(t, err)
		if status.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container is %s", status.Status.State)
		}
	}
	alive()
	check(t, node.Runtime().Restart(ctx, func(s *cluster.Component) {
		s.Config = map[string]any{"crio": map[string]any{"runtime": map[string]any{"log_level": "debug"}}}
	}))
	alive()
	log, err := os.ReadFile(node.Runtime().Log())
	check(t, err)
	if !bytes.Contains(log, []byte("level=debug")) {
		t.Error("the setting has not reached CRI-O")
	}
	check(t, node.Runtime().Kill(ctx))
	check(t, node.Runtime().Start(ctx, func(s *cluster.Component) { s.Config = nil }))
	alive()
	check(t, c.WaitNodeReady(ctx, "n2"))

	// Another build on this node only.
	check(t, node.Runtime().Restart(ctx, func(s *cluster.Component) { s.Flavour = cluster.Patched }))
	alive()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", node.Runtime().PID())); err != nil || exe != built(t, "patched", "crio") {
		t.Errorf("%s runs, %v", exe, err)
	}
	check(t, node.Runtime().Restart(ctx, func(s *cluster.Component) { s.Flavour = "" }))
	alive()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", node.Runtime().PID())); err != nil || exe != built(t, "stock", "crio") {
		t.Errorf("%s runs, %v", exe, err)
	}
}

// built returns the path of a program of a build, as in /proc.
func built(t *testing.T, flavour, name string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(filepath.Join("..", "..", "..", "_build", "bin", flavour, name))
	check(t, err)
	path, err = filepath.Abs(path)
	check(t, err)
	return path
}

func testAPIServer(ctx context.Context, t *testing.T, c *cluster.Cluster, client kubernetes.Interface) {
	nodes := func() []string {
		t.Helper()
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		check(t, err)
		var names []string
		for _, node := range list.Items {
			names = append(names, node.Name)
		}
		return names
	}
	want := nodes()
	for _, flavour := range []cluster.Flavour{cluster.Patched, cluster.Stock} {
		check(t, c.APIServer().Restart(ctx, func(s *cluster.Component) { s.Flavour = flavour }))
		version, err := client.Discovery().ServerVersion()
		check(t, err)
		if patched := strings.Contains(version.GitVersion, "layerlocality"); patched != (flavour == cluster.Patched) {
			t.Errorf("the %s apiserver is %s", flavour, version.GitVersion)
		}
		if got := nodes(); !slices.Equal(got, want) {
			t.Errorf("nodes %v, before the restart %v", got, want)
		}
	}
	for _, name := range want {
		check(t, c.WaitNodeReady(ctx, name))
	}
	audit, err := os.Open(c.AuditLog())
	check(t, err)
	defer audit.Close()
	lines := bufio.NewScanner(audit)
	lines.Buffer(nil, 1<<20)
	var writes int
	for lines.Scan() {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Subresource, Name string }
		}
		check(t, json.Unmarshal(lines.Bytes(), &event))
		if event.User.Username == "system:node:n2" && event.Verb == "patch" &&
			event.ObjectRef.Resource == "nodes" && event.ObjectRef.Subresource == "status" {
			writes++
		}
	}
	check(t, lines.Err())
	if writes == 0 {
		t.Error("no write of n2's status in the audit log")
	}
}

func testSecondCluster(ctx context.Context, t *testing.T, first *cluster.Cluster) {
	dir := shortDir(t)
	before := observe(t)
	second, err := livetest.Start(ctx, cluster.Config{Name: "e2e-second", Dir: dir, LogDir: logs(t), Nodes: 1, RuntimeOnly: true})
	check(t, err)
	used := namespaces(t, dir)
	if second.Address() == first.Address() {
		t.Errorf("both clusters are at %s", first.Address())
	}
	if second.APIServer() != nil || second.Node("n1").Kubelet() != nil {
		t.Error("a cluster of runtimes has Kubernetes components")
	}
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "x", Size: 1 << 20}}})
	check(t, err)
	pushed, err := images.Push(ctx, second.Registry().Address+"/x:v1", image)
	check(t, err)
	cri, err := second.Node("n1").CRI()
	check(t, err)
	_, err = cri.Image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: pushed.Reference}})
	check(t, err)
	if out, err := second.Node("n1").Exec(ctx, "crictl", "runp", "--runtime", "runc", podSandbox(t)); err != nil {
		t.Errorf("a pod without a kubelet: %s, %v", out, err)
	}
	check(t, second.Stop(ctx))
	assertNothingLeft(t, dir, before, used)
	status, err := first.Status(ctx)
	check(t, err)
	if down := status.Down(); len(down) > 0 {
		t.Errorf("stopping the second cluster has ended %v of the first", down)
	}
}

func podSandbox(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pod.json")
	check(t, os.WriteFile(path, []byte(`{"metadata":{"name":"p","namespace":"default","uid":"1"},"linux":{}}`), 0o600))
	return path
}

// TestFailedStart: if a component cannot start, the error names it and its log,
// and the start is undone.
func TestFailedStart(t *testing.T) {
	livetest.Long(t, "the unit tests of lab/cluster, and clusters that stop")
	ctx := timeout(t, 5*time.Minute)
	dir := shortDir(t)
	before := observe(t)
	var once sync.Once
	var used map[uint64]bool
	_, err := livetest.Start(ctx, cluster.Config{
		Name: "e2e-failed", Dir: dir, Nodes: 2,
		PerNode: func(node string, crio, _ *cluster.Component) {
			once.Do(func() { used = namespaces(t, dir) })
			if node == "n2" {
				crio.Config = map[string]any{"crio": map[string]any{"runtime": map[string]any{"cgroup_manager": "nonsense"}}}
			}
		},
	})
	log := filepath.Join(dir, "log", "n2-crio.log")
	if err == nil || !strings.Contains(err.Error(), "n2 crio ended early") ||
		!strings.Contains(err.Error(), log) || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error %v, want one that names n2's CRI-O, its log and the cause", err)
	}
	if _, err := os.Stat(log); err != nil {
		t.Errorf("the log that the error names: %v", err)
	}
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != 2 {
		t.Errorf("%s holds %v, want cluster.json and log", dir, entries)
	}
	assertNothingLeft(t, dir, before, used)
}

// localcluster builds the command.
func localcluster(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "localcluster")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/localcluster").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// interruptedUp runs "localcluster up" until it prints a text, and then sends
// it a signal.
func interruptedUp(t *testing.T, command, dir, until string, signal os.Signal) (used map[uint64]bool, output string, exit int) {
	t.Helper()
	cmd := exec.Command(command, "up", "--flavour", "stock", "--nodes", "2", "--dir", dir)
	pipe, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		output += lines.Text() + "\n"
		if used == nil && strings.Contains(lines.Text(), until) {
			used = namespaces(t, dir)
			check(t, cmd.Process.Signal(signal))
		}
	}
	_ = cmd.Wait()
	if used == nil {
		t.Fatalf("it never came to %q: %s", until, output)
	}
	return used, output, cmd.ProcessState.ExitCode()
}

// TestKilledCommand: what a command killed with kill -9 leaves, the next
// command removes.
func TestKilledCommand(t *testing.T) {
	livetest.Long(t, "the unit tests of lab/cluster/machine")
	command := localcluster(t)
	dir := shortDir(t)
	before := observe(t)
	for _, until := range []string{"network", "CRI-O serves", "kube-apiserver serves"} {
		used, _, _ := interruptedUp(t, command, dir, until, unix.SIGKILL)
		if found, err := machine.Leftovers(dir); err != nil || len(found) == 0 {
			t.Errorf("killed at %q, nothing was left to clean up: %v", until, err)
		}
		if until == "network" {
			// The next start takes care of it ...
			out, err := exec.Command(command, "up", "--flavour", "stock", "--runtime-only", "--nodes", "1", "--dir", dir).CombinedOutput()
			if err != nil {
				t.Fatalf("the next start: %v: %s", err, out)
			}
			if out, err := exec.Command(command, "status", "--dir", dir).CombinedOutput(); err != nil {
				t.Errorf("status: %v: %s", err, out)
			}
			// ... and a detached cluster has no owner, but is in use.
			if out, err := exec.Command(command, "up", "--flavour", "stock", "--dir", dir).CombinedOutput(); err == nil ||
				!strings.Contains(string(out), "running") {
				t.Errorf("started twice: %v: %s", err, out)
			}
		}
		// ... and so does down.
		if out, err := exec.Command(command, "down", "--dir", dir).CombinedOutput(); err != nil {
			t.Fatalf("down: %v: %s", err, out)
		}
		assertNothingLeft(t, dir, before, used)
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// TestInterruptedCommand: Ctrl-C cleans up.
func TestInterruptedCommand(t *testing.T) {
	livetest.Long(t, "the unit tests of lab/cluster/machine")
	command := localcluster(t)
	for _, signal := range []os.Signal{unix.SIGINT, unix.SIGTERM} {
		dir := shortDir(t)
		before := observe(t)
		used, output, exit := interruptedUp(t, command, dir, "CRI-O serves", signal)
		if exit != 1 || !strings.Contains(output, "error: ") {
			t.Errorf("%s: exit code %d: %s", signal, exit, output)
		}
		assertNothingLeft(t, dir, before, used)
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is left: %v", signal, dir, err)
		}
	}
}

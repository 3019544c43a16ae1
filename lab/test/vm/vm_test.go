//go:build e2e

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/nodeimages"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	name = "vm1"
	// layerBytes is the size of a layer. The machine unpacks about 10 MB a second.
	layerBytes = 6_000_000
	// unpacked is where the machine has the folder of a release.
	unpacked = "/opt/layer-locality"
	// slow is how long a step on the machine may take.
	slow = 5 * time.Minute
)

var (
	c   *cluster.Cluster
	lab *scenario.Lab
)

// The control plane is patched; two nodes of the cluster compete with the machine.
func TestMain(m *testing.M) {
	config := cluster.Config{
		Name: livetest.ClusterName("vm"), Nodes: 2, Flavour: cluster.Patched, Scheduler: scenario.Schedulers(),
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) { c = started }))
}

var must = testkit.Must

// TestNode is the life of a node as a user has it: installed with upstream's binaries, replaced
// by docs/install-binaries.md, restarted, and put back by the same page.
func TestNode(t *testing.T) {
	var err error
	lab, err = scenario.NewLab(c)
	must(t, err)
	template, release := disk(t), released(t)
	family, err := scenario.PushFamily(t.Context(), c, "vm", layerBytes)
	must(t, err)

	begin := time.Now()
	m, err := boot(t.Context(), c, name, template)
	if err != nil {
		console, _ := os.ReadFile(filepath.Join(c.LogDir(), name+".console.log"))
		t.Fatalf("%v\n%s", err, console[max(0, len(console)-3000):])
	}
	t.Cleanup(m.stop)
	t.Cleanup(func() { journal(t, m) })
	t.Logf("accepts a login after %.0f s", time.Since(begin).Seconds())
	sh := func(script string) string {
		t.Helper()
		out, err := m.run(t.Context(), script, nil)
		must(t, err)
		return strings.TrimSpace(out)
	}

	t.Log("upstream's binaries, as a distribution installs them")
	install(t, m)
	must(t, m.copy(t.Context(), 0o755, binaries("../../../_build/bin/stock", "/usr/bin/")))
	sh("systemctl daemon-reload; systemctl enable --now --quiet crio kubelet")
	ready(t)
	if system := sh("stat -fc %T /sys/fs/cgroup"); system != "cgroup2fs" {
		t.Errorf("/sys/fs/cgroup is a %s, want cgroup v2", system)
	}
	// What Two leaves behind when its pod is gone: L1 and L2.
	run(t, "vm-two", scenario.Pod{Image: family.Two.Reference, Node: name})
	if slice := sh("systemd-cgls --no-pager -u kubepods.slice | grep -c 'crio-.*scope' || true"); slice == "0" {
		t.Error("no container is in a scope of kubepods.slice: systemd does not manage its cgroup")
	}
	container := sh("crictl ps -q --name main")
	if images := sh("crictl images -o json"); strings.Contains(images, livetest.AnnotationPrefix) {
		t.Errorf("upstream's CRI-O states layers: %s", images)
	}
	eventuallyLayers(t, family.Two.Reference, false)

	t.Log("replaced, by the page")
	replace, back := commands(t, "## 2. Each node"), commands(t, "## Go back")
	if len(replace) != 2 || len(back) != 2 {
		t.Fatalf("docs/install-binaries.md has %d and %d blocks of commands, want 2 in section 2, stop and replace, start; and 2 to go back, take layers back, back", len(replace), len(back))
	}
	must(t, m.copy(t.Context(), 0o755, binaries(filepath.Join(release, "bin"), unpacked+"/bin/")))
	replaceAll := func(block string) { t.Helper(); sh("cd " + unpacked + "\n" + block) }
	cordon(t, true)
	replaceAll(replace[0])
	sh("cp -p /var/lib/kubelet/config.yaml /var/lib/kubelet/config.before\nprintf 'featureGates:\\n  NodeStatusImageLayers: true\\n' >>/var/lib/kubelet/config.yaml")
	replaceAll(replace[1])
	cordon(t, false)
	ready(t)
	if images := sh("crictl images -o json | grep -m1 imageLayer"); images == "" {
		t.Error("crictl images shows no layers")
	}
	if now := sh("crictl ps -q --name main"); now != container {
		t.Errorf("the container was %q before and is %q after CRI-O and kubelet were replaced", container, now)
	}
	eventuallyLayers(t, family.Two.Reference, true)
	must(t, lab.Remove(t.Context(), "vm-two"))

	t.Log("the third pod")
	run(t, "vm-one", scenario.Pod{Image: family.One.Reference, Node: "n1"})
	must(t, lab.Known(t.Context(), family.One.Reference))
	livetest.Use(t, lab, "n2") // n1, which has all of it, is as full as in the ancestor's scenario
	before, err := scenario.Pulled(c, scenario.Repository(family.One))
	must(t, err)
	run(t, "vm-third", scenario.Pod{Image: family.One.Reference, Scheduler: scenario.Layers})
	nodes, err := lab.Placed(t.Context(), "vm-third")
	must(t, err)
	after, err := scenario.Pulled(c, scenario.Repository(family.One))
	must(t, err)
	own := family.One.Layers[len(family.One.Layers)-1].Size
	if pulled := after[name] - before[name]; nodes["vm-third"] != name || pulled < own || pulled > own+64<<10 {
		ratings, err := lab.Rate(t.Context(), family.One.Reference)
		t.Errorf("%s has two of three layers; the pod went to %s, which has pulled %d bytes, want %d and a configuration: %+v %v", name, nodes["vm-third"], pulled, own, ratings, err)
	}

	t.Log("CRI-O restarts, then the machine")
	container = sh("crictl ps -q --name main")
	sh("systemctl restart crio")
	ready(t)
	if now := sh("crictl ps -q --name main"); now != container || now == "" {
		t.Errorf("the container was %q before the restart of CRI-O and is %q after it", container, now)
	}
	eventuallyLayersOnMachine(t, m, family.One.Reference)
	eventuallyLayers(t, family.One.Reference, true)
	booted := bootID(t.Context(), t)
	must(t, m.reboot(t.Context()))
	// Until its kubelet has written the Node, and the pod runs again, the apiserver has what was
	// before.
	livetest.Eventually(t, slow, "the Node of "+name+" has another bootID", func(ctx context.Context) error {
		if bootID(ctx, t) == booted {
			return errors.New(booted)
		}
		return nil
	})
	livetest.Eventually(t, slow, "the container runs again", func(ctx context.Context) error {
		now, err := m.run(ctx, "crictl ps -q --state running --name main", nil)
		if now = strings.TrimSpace(now); err == nil && (now == "" || now == container) {
			err = fmt.Errorf("it is %q, and was %q before", now, container)
		}
		return err
	})
	ready(t)
	must(t, lab.Ready(t.Context(), "vm-third"))
	eventuallyLayersOnMachine(t, m, family.One.Reference)
	eventuallyLayers(t, family.One.Reference, true)

	t.Log("back, by the page")
	cordon(t, true)
	sh("mv /var/lib/kubelet/config.before /var/lib/kubelet/config.yaml")
	replaceAll(back[0])
	eventuallyLayers(t, family.One.Reference, false)
	replaceAll(back[1])
	cordon(t, false)
	ready(t)
	must(t, lab.Ready(t.Context(), "vm-third"))
	eventuallyLayers(t, family.One.Reference, false)
	if images := sh("crictl images -o json"); strings.Contains(images, livetest.AnnotationPrefix) {
		t.Errorf("CRI-O still states layers: %s", images)
	}
	if left := sh("ls /usr/bin | grep '[.]stock$' || true"); left != "" {
		t.Errorf("left in /usr/bin: %s", left)
	}
	if failed := sh("systemctl --failed --plain --no-legend"); failed != "" {
		t.Errorf("units that failed: %s", failed)
	}
}

// disk returns the folder of what the machine boots from.
func disk(t *testing.T) string {
	t.Helper()
	command := exec.Command("./disk.sh")
	command.Stderr = os.Stderr
	out, err := command.Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// install configures the machine as kubeadm and the packages of CRI-O do, but for what the lab
// lacks: README.md lists that.
func install(t *testing.T, m *virtual) {
	t.Helper()
	dir := t.TempDir()
	write := func(content string) string {
		t.Helper()
		file, err := os.CreateTemp(dir, "")
		must(t, err)
		_, err = file.WriteString(content)
		must(t, errors.Join(err, file.Close()))
		return file.Name()
	}
	registry := c.Registry().Address
	must(t, m.copy(t.Context(), 0o600, map[string]string{
		// As after "kubeadm join", whose token is an admin's identity here: the kubelet asks for
		// a certificate of its own.
		"/etc/kubernetes/bootstrap-kubelet.conf": c.Kubeconfig(),
		"/etc/kubernetes/pki/ca.crt":             filepath.Join(c.Dir(), "pki", "ca.crt"),
	}))
	must(t, m.copy(t.Context(), 0o644, map[string]string{
		"/etc/systemd/system/crio.service":    "../../../rpm/cri-o/crio.service",
		"/etc/systemd/system/kubelet.service": "../../../rpm/kubelet/kubelet.service",
		"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": write(`[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
`),
		"/var/lib/kubelet/config.yaml": write(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///var/run/crio/crio.sock
cgroupDriver: systemd
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
`),
		// Else udev may give an interface another address while the plugin "bridge" works with it,
		// and CRI-O's check fails (github.com/containernetworking/plugins/issues/805).
		"/etc/systemd/network/50-veth.link":           write("[Match]\nDriver=veth\n[Link]\nMACAddressPolicy=none\n"),
		"/etc/crictl.yaml":                            write("runtime-endpoint: unix:///var/run/crio/crio.sock\ntimeout: 60\n"),
		"/etc/containers/policy.json":                 write(`{"default": [{"type": "insecureAcceptAnything"}]}`),
		"/etc/crio/crio.conf.d/10-pause.conf":         write(fmt.Sprintf("[crio.image]\npause_image = %q\n", registry+"/pause:1")),
		"/etc/crio/crio.conf.d/20-runtime.conf":       write("[crio.runtime]\ndefault_runtime = \"runc\"\n[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/sbin/runc\"\nmonitor_path = \"/usr/bin/conmon\"\n"),
		"/etc/containers/registries.conf":             write(fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", registry)),
		"/etc/cni/net.d/11-crio-ipv4-bridge.conflist": upstream(t, "contrib/cni/11-crio-ipv4-bridge.conflist"),
	}))
	must(t, m.copy(t.Context(), 0o755, map[string]string{"/usr/bin/crictl": c.Tool("crictl")}))
	_, err := m.run(t.Context(), "mkdir -p /etc/kubernetes/manifests; udevadm control --reload", nil)
	must(t, err)
}

// upstream returns the path of a file of CRI-O's source.
func upstream(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", `. ../../../scripts/lib.sh && module_dir "$(upstream_module cri-o)" "$(pinned_version cri-o)"`).Output()
	must(t, err)
	return filepath.Join(strings.TrimSpace(string(out)), path)
}

// released makes the archive of a release from what is committed, unpacks it, and returns the folder.
func released(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	command := exec.Command("bash", "-euc", `../../../scripts/release.sh --only-binaries --platform "linux/$(go env GOHOSTARCH)" --out "$1/release" >/dev/null
cd "$1" && tar -xzf release/*.tar.gz && echo "$PWD"/layer-locality-*`, "-", dir)
	command.Stderr = os.Stderr
	out, err := command.Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// binaries returns what a node has from a folder here, by its path in a folder there.
func binaries(from, to string) map[string]string {
	files := map[string]string{}
	for _, program := range []string{"crio", "pinns", "kubelet"} {
		files[to+program] = filepath.Join(from, program)
	}
	return files
}

var block = regexp.MustCompile("(?s)```console\n(.*?)```")

// commands returns the blocks of commands of a section of docs/install-binaries.md: what root
// types on the node. What is typed elsewhere, or with SELinux, is left out.
func commands(t *testing.T, section string) []string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/install-binaries.md")
	must(t, err)
	_, text, found := strings.Cut(string(page), section+"\n")
	if !found {
		t.Fatalf("docs/install-binaries.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var blocks []string
	for _, match := range block.FindAllStringSubmatch(text, -1) {
		var lines []string
		for line := range strings.Lines(match[1]) {
			line = strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "# ")
			if strings.HasPrefix(line, "kubectl ") || strings.HasPrefix(line, "restorecon ") {
				continue
			}
			lines = append(lines, line)
		}
		blocks = append(blocks, strings.Join(lines, "\n"))
	}
	return blocks
}

// cordon does what the page does with kubectl, but leaves the pods: a container that goes on
// shows more.
func cordon(t *testing.T, yes bool) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, yes)
	_, err := lab.Client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// ready waits until the Node is Ready and its kubelet has renewed its Lease since now. Times of
// the machine do not count: its clock may lag behind.
func ready(t *testing.T) {
	t.Helper()
	leases := lab.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	before := ""
	if lease, err := leases.Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		before = lease.ResourceVersion
	} else if !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	livetest.Eventually(t, slow, name+" is Ready", func(ctx context.Context) error {
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.ResourceVersion == before {
			return errors.New("its Lease has not been renewed")
		}
		return c.WaitNodeReady(ctx, name)
	})
}

// run starts a pod and waits until it is ready.
func run(t *testing.T, pod string, description scenario.Pod) {
	t.Helper()
	description.Name = pod
	livetest.RemoveAtEnd(t, lab, pod)
	must(t, lab.Submit(t.Context(), description))
	must(t, lab.Ready(t.Context(), pod))
}

// bootID returns which start of the machine the Node is of.
func bootID(ctx context.Context, t *testing.T) string {
	t.Helper()
	node, err := lab.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	return node.Status.NodeInfo.BootID
}

// eventuallyLayersOnMachine waits until CRI-O states the layers of the registry's manifest.
func eventuallyLayersOnMachine(t *testing.T, m *virtual, reference string) {
	t.Helper()
	want, err := livetest.FromRegistry(t.Context(), reference)
	must(t, err)
	livetest.Eventually(t, slow, fmt.Sprintf("CRI-O states %s with %d layers", reference, len(want)), func(ctx context.Context) error {
		out, err := m.run(ctx, "crictl images -o json", nil)
		if err != nil {
			return err
		}
		list, err := livetest.FromCrictl(name, []byte(out))
		if err != nil {
			return err
		}
		got, _, err := livetest.FromCRI(livetest.FindCRI(list, reference))
		if diff := livetest.Diff(got, want); err == nil && diff != "" {
			err = errors.New(diff)
		}
		return err
	})
}

// eventuallyLayers waits until the Node states the image, with the layers of the registry's
// manifest or with none.
func eventuallyLayers(t *testing.T, reference string, with bool) {
	t.Helper()
	want := livetest.Layers{}
	if with {
		all, err := livetest.FromRegistry(t.Context(), reference)
		must(t, err)
		for digest, size := range all {
			if size >= 1<<20 { // smaller ones are left out by default
				want[digest] = size
			}
		}
	}
	livetest.Eventually(t, slow, fmt.Sprintf("%s states %s with %d layers", name, reference, len(want)), func(ctx context.Context) error {
		list, err := nodeimages.Get(ctx, lab.Client, name)
		if err != nil {
			return err
		}
		image, ok := livetest.FindNode(list, reference)
		if !ok {
			return errors.New("it does not state the image")
		}
		got, err := livetest.FromNode(image)
		if diff := livetest.Diff(got, want); err == nil && diff != "" {
			err = errors.New(diff)
		}
		return err
	})
}

// journal keeps what the services logged, if the test failed.
func journal(t *testing.T, m *virtual) {
	if !t.Failed() {
		return
	}
	text, err := m.run(context.Background(), "journalctl --no-pager -u crio -u kubelet -n 4000", nil)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.LogDir(), name+".journal.log"), []byte(text), 0o600)
	}
	if err != nil {
		t.Log(err)
	}
}

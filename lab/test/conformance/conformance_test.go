//go:build e2e

package conformance

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	"github.com/layer-locality/layer-locality/lab/test/suites"
)

const (
	// Nodes of each cluster, besides the control plane's machine. Some tests want two.
	nodes = 2
	// parallel is how many tests run side by side: they mostly wait. Ginkgo runs those by themselves that are serial.
	parallel = "4"
	// attempts at a test: the machine is small. Both clusters have as many.
	attempts = "2"
	// least is how many conformance tests there are at least.
	least = 350
	// timeout of a run.
	timeout = "4h"
)

//go:embed addons.yaml
var addons string

// outDir is where logs and reports of tests go.
var outDir = filepath.Join("..", "..", "..", "_out", "test")

// TestConformance checks that no conformance test passes on a stock cluster and fails on a patched one. FOCUS selects
// tests by a regular expression.
func TestConformance(t *testing.T) {
	flavours := []cluster.Flavour{cluster.Stock, cluster.Patched}
	skips, err := suites.ReadSkips("skip.yaml", string(cluster.Stock), string(cluster.Patched))
	if err != nil {
		t.Fatal(err)
	}
	rootfs := exec.CommandContext(t.Context(), "./rootfs.sh")
	rootfs.Stderr = os.Stderr
	root, err := rootfs.Output()
	if err != nil {
		t.Fatalf("%s: %v", rootfs, err)
	}
	reports := map[cluster.Flavour]suites.Report{}
	for _, flavour := range flavours {
		// The subtest ends its cluster: there is memory and time for one.
		if !t.Run(string(flavour), func(t *testing.T) { reports[flavour] = run(t, flavour, strings.TrimSpace(string(root)), skips) }) {
			t.FailNow()
		}
	}
	stock, patched := reports[cluster.Stock], reports[cluster.Patched]
	text, onlyOurs := compare(stock, patched, skips)
	if err := os.WriteFile(filepath.Join(outDir, "conformance.txt"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text)
	for _, spec := range onlyOurs {
		t.Errorf("passes on stock, fails on patched: %s: %s", spec, patched.Failed[spec])
	}
	if all := len(stock.Passed) + len(stock.Failed) + len(skips); len(stock.Passed)*100 < all*95 || len(stock.Passed) < least && os.Getenv("FOCUS") == "" {
		t.Errorf("%d of %d tests passed on stock: images or the cluster are not as they want them", len(stock.Passed), all)
	}
}

// compare returns a table of both runs, whose last line has the numbers, and what only passes on stock.
func compare(stock, patched suites.Report, skips []suites.Skip) (text string, onlyOurs []string) {
	var b strings.Builder
	for _, r := range []suites.Report{stock, patched} {
		fmt.Fprintf(&b, "%-8s %4d passed %4d failed %4d skipped themselves\n", r.Name, len(r.Passed), len(r.Failed), len(r.Skipped))
		for _, spec := range slices.Sorted(maps.Keys(r.Failed)) {
			fmt.Fprintf(&b, "%s failed: %s: %.300s\n", r.Name, spec, strings.Join(strings.Fields(r.Failed[spec]), " "))
		}
		for _, spec := range slices.Sorted(maps.Keys(r.Skipped)) {
			fmt.Fprintf(&b, "%s skipped: %s: %s\n", r.Name, spec, r.Skipped[spec])
		}
	}
	for _, s := range skips {
		fmt.Fprintf(&b, "not run: %s: %s\n", s.Spec, s.Reason)
	}
	for _, spec := range stock.Passed {
		if !slices.Contains(patched.Passed, spec) {
			onlyOurs = append(onlyOurs, spec)
		}
	}
	fmt.Fprintf(&b, "conformance passed=%d failed=%d only_ours_failed=%d\n", len(patched.Passed), len(patched.Failed), len(onlyOurs))
	return b.String(), onlyOurs
}

// binary returns the path of a program that scripts/build.sh makes, such as stock/kubelet.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "..", "_build", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// binaries are all programs that an outcome depends on, besides those of the system.
func binaries(flavour cluster.Flavour) []string {
	all := []string{"tools/etcd", "tools/registry", "tools/runc", "tools/coredns"}
	for _, name := range []string{"crio", "pinns", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		all = append(all, string(flavour)+"/"+name)
	}
	for _, name := range []string{"e2e.test", "ginkgo", "kubectl", "kube-proxy", "agnhost", "nonewprivs", "sample-apiserver"} {
		all = append(all, "stock/"+name)
	}
	return all
}

// inputs returns the hash of what an outcome depends on.
func inputs(t *testing.T, flavour cluster.Flavour, root string) string {
	t.Helper()
	files := []string{root, "addons.yaml", "skip.yaml", "conformance_test.go", "images_test.go"}
	for _, name := range binaries(flavour) {
		files = append(files, binary(t, name))
	}
	for _, pattern := range []string{"../suites/*.go", "../../cluster/*.go", "../../cluster/*/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	hash := sha256.New()
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(hash, file)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8])
}

// run returns the outcome of the tests on a cluster of a flavour: one from before, if nothing has changed.
func run(t *testing.T, flavour cluster.Flavour, root string, skips []suites.Skip) suites.Report {
	t.Helper()
	read := func(path string) (suites.Report, error) {
		r, err := suites.ReadReport(path)
		r.Name = string(flavour)
		return r, err
	}
	focus := os.Getenv("FOCUS")
	kept := filepath.Join(cacheDir(t), fmt.Sprintf("%s-%s.xml", flavour, inputs(t, flavour, root)))
	if r, err := read(kept); err == nil && focus == "" {
		t.Logf("%s: as it was run earlier, with the same inputs: %s", flavour, kept)
		return r
	}
	ctx := t.Context()
	c := start(t, flavour)
	push(ctx, t, c, root)
	deploy(ctx, t, c)

	report := filepath.Join(outDir, "conformance-"+string(flavour)+".xml")
	if err := os.RemoveAll(report); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(outDir, "conformance-"+string(flavour)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	folder, err := filepath.Abs(outDir)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--procs=" + parallel, "--flake-attempts=" + attempts, "--timeout=" + timeout, "--no-color", "--seed=1",
		"--output-dir=" + folder, "--junit-report=" + filepath.Base(report), "--focus=" + cmp.Or(focus, `\[Conformance\]`),
	}
	for _, s := range skips {
		args = append(args, "--skip="+regexp.QuoteMeta(s.Spec))
	}
	args = append(args, binary(t, "stock/e2e.test"), "--",
		"--kubeconfig="+c.Kubeconfig(), "--kubectl-path="+binary(t, "stock/kubectl"), "--provider=skeleton", "--disable-log-dump=true")
	ginkgo := exec.CommandContext(ctx, binary(t, "stock/ginkgo"), args...)
	ginkgo.Env, ginkgo.Stdout, ginkgo.Stderr = environment(t, c), log, log
	ginkgo.Dir = t.TempDir()
	ginkgo.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // then it ends its own processes
	began := time.Now()
	runErr := ginkgo.Run()
	r, err := read(report)
	if err != nil {
		t.Fatalf("%v (it ended with %v); its output is %s", err, runErr, log.Name())
	}
	if runErr != nil && len(r.Failed) == 0 {
		t.Fatalf("%v, without a failed test; its output is %s", runErr, log.Name())
	}
	t.Logf("%s: %s, in %s", flavour, r.Summary(), time.Since(began).Round(time.Second))
	if focus == "" {
		content, err := os.ReadFile(report)
		if err == nil {
			err = os.WriteFile(kept, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// cacheDir is where outcomes are kept, beside compiled binaries.
func cacheDir(t *testing.T) string {
	t.Helper()
	home, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cmp.Or(os.Getenv("LAYERLOCALITY_CACHE"), filepath.Join(home, "layer-locality")), "conformance")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// environment is that of Kubernetes' tests: images come from the cluster's registry, and no proxy is between.
func environment(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	list := filepath.Join(t.TempDir(), "repositories.yaml")
	if err := os.WriteFile(list, []byte(repositories(c.Registry().Address)), 0o600); err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "KUBE_TEST_REPO_LIST="+list, "NO_PROXY=*", "no_proxy=*")
}

// start starts a cluster as conformance tests want it.
func start(t *testing.T, flavour cluster.Flavour) *cluster.Cluster {
	t.Helper()
	name := "conformance"
	dir := folder.Default(name)
	pki := func(file string) string { return filepath.Join(dir, "pki", file) }
	logs, err := filepath.Abs(filepath.Join(outDir, "logs", name+"-"+string(flavour)))
	if err != nil {
		t.Fatal(err)
	}
	return livetest.StartFor(t, cluster.Config{
		Name: name, Dir: dir, LogDir: logs, Nodes: nodes, Flavour: flavour, Logf: t.Logf,
		APIServer: cluster.Component{Args: []string{
			// Extension apiservers. No service works on the control plane's machine, so they are reached by their pods.
			"--enable-aggregator-routing=true", "--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=kube-apiserver-kubelet-client",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
			"--proxy-client-cert-file=" + pki("apiserver-kubelet.crt"), "--proxy-client-key-file=" + pki("apiserver-kubelet.key"),
		}},
		Kubelet: cluster.Component{Config: map[string]any{"clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local"}},
		Runtime: cluster.Component{Config: map[string]any{"crio": map[string]any{"runtime": map[string]any{"disable_hostport_mapping": false}}}},
	})
}

// deploy deploys kube-proxy and CoreDNS, and waits for them.
func deploy(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	manifests := bytes.ReplaceAll([]byte(addons), []byte("REGISTRY"), []byte(c.Registry().Address))
	if err := c.Apply(ctx, metav1.NamespaceSystem, manifests); err != nil {
		t.Fatal(err)
	}
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	livetest.Eventually(t, 3*time.Minute, "kube-proxy and CoreDNS", func(ctx context.Context) error {
		proxy, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "kube-proxy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		dns, err := client.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, "coredns", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if proxy.Status.NumberReady < nodes || dns.Status.ReadyReplicas < *dns.Spec.Replicas {
			return fmt.Errorf("%d kube-proxies and %d CoreDNS are ready", proxy.Status.NumberReady, dns.Status.ReadyReplicas)
		}
		return nil
	})
}

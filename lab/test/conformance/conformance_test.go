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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/layer-locality/layer-locality/internal/kustomize"
	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/folder"
	"github.com/layer-locality/layer-locality/lab/scenario"
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
var besides string

// repository is the folder of this repository.
var repository = filepath.Join("..", "..", "..")

var must = testkit.Must

// outDir is where logs and reports of tests go.
var outDir = filepath.Join(repository, "_out", "test")

// subject is a cluster that the tests run on.
type subject struct {
	name    string
	flavour cluster.Flavour
	// scheduler is that of kube-scheduler.
	scheduler cluster.Component
	addons    []cluster.Addon
	// install, if set, installs what users do.
	install func(context.Context, *testing.T, *cluster.Cluster)
}

// resolves is layer-resolver, for images of every registry.
var resolves = []cluster.Addon{addons.Resolver(cluster.Component{Args: []string{"--allow-registry=*"}})}

// stock is what each of ours is compared with. SCHEDULER selects ours by its name.
var (
	stock = subject{name: "stock", flavour: cluster.Stock}
	ours  = []subject{
		{name: "patched", flavour: cluster.Patched},
		// LayerLocality is in the default profile.
		{name: "layers", flavour: cluster.Patched, addons: resolves, scheduler: cluster.Component{
			Config: map[string]any{"profiles": []map[string]any{scenario.Recommended(scenario.Stock, nil)}},
		}},
		// All is stock, with layer-agent beside, and a second scheduler that places all pods.
		{name: "second", flavour: cluster.Stock, addons: resolves, install: second},
	}
)

// TestConformance checks that no conformance test passes on a stock cluster and fails on one of ours. FOCUS selects
// tests by a regular expression.
func TestConformance(t *testing.T) {
	names := []string{stock.name}
	for _, s := range ours {
		names = append(names, s.name)
	}
	at := slices.Index(names[1:], cmp.Or(os.Getenv("SCHEDULER"), ours[0].name))
	if at < 0 {
		t.Fatalf("SCHEDULER=%s: want one of %s", os.Getenv("SCHEDULER"), strings.Join(names[1:], ", "))
	}
	own := ours[at]
	skips, err := suites.ReadSkips("skip.yaml", names...)
	if err != nil {
		t.Fatal(err)
	}
	// What one of both leaves out, the other does, too.
	skips = slices.DeleteFunc(skips, func(s suites.Skip) bool { return !s.Of(stock.name) && !s.Of(own.name) })
	rootfs := exec.CommandContext(t.Context(), "./rootfs.sh")
	rootfs.Stderr = os.Stderr
	root, err := rootfs.Output()
	if err != nil {
		t.Fatalf("%s: %v", rootfs, err)
	}
	var reports []suites.Report
	for _, s := range []subject{stock, own} {
		// The subtest ends its cluster: there is memory and time for one.
		if !t.Run(s.name, func(t *testing.T) { reports = append(reports, run(t, s, strings.TrimSpace(string(root)), skips)) }) {
			t.FailNow()
		}
	}
	upstream, changed := reports[0], reports[1]
	text, onlyOurs := compare(upstream, changed, skips)
	if err := os.WriteFile(filepath.Join(outDir, "conformance.txt"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text)
	for _, spec := range onlyOurs {
		t.Errorf("passes on stock, fails on %s: %s: %s", own.name, spec, changed.Failed[spec])
	}
	if all := len(upstream.Passed) + len(upstream.Failed) + leftOut(changed, skips); len(upstream.Passed)*100 < all*95 || len(upstream.Passed) < least && os.Getenv("FOCUS") == "" {
		t.Errorf("%d of %d tests passed on stock: images or the cluster are not as they want them", len(upstream.Passed), all)
	}
}

// selected returns the regular expression of the tests that run.
func selected() string { return cmp.Or(os.Getenv("FOCUS"), `\[Conformance\]`) }

// leftOut returns how many of the selected tests are not run because they are in the list.
func leftOut(r suites.Report, skips []suites.Skip) (n int) {
	focus := regexp.MustCompile(selected())
	for _, spec := range r.Excluded {
		if _, listed := r.Listed(spec, skips); listed && focus.MatchString(spec) {
			n++
		}
	}
	return n
}

// compare returns a table of both runs, whose last line has the numbers, and what only passes on stock.
func compare(upstream, changed suites.Report, skips []suites.Skip) (text string, onlyOurs []string) {
	var b strings.Builder
	for _, r := range []suites.Report{upstream, changed} {
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
	for _, spec := range upstream.Passed {
		if !slices.Contains(changed.Passed, spec) {
			onlyOurs = append(onlyOurs, spec)
		}
	}
	fmt.Fprintf(&b, "conformance passed=%d failed=%d only_ours_failed=%d\n", len(changed.Passed), len(changed.Failed), len(onlyOurs))
	return b.String(), onlyOurs
}

// binary returns the path of a program that scripts/build.sh makes, such as stock/kubelet.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(repository, "_build", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// binaries are all programs that an outcome depends on, besides those of the system.
func (s subject) binaries() []string {
	all := []string{"tools/etcd", "tools/registry", "tools/runc", "tools/coredns"}
	for _, name := range []string{"crio", "pinns", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		all = append(all, string(s.flavour)+"/"+name)
	}
	if s.addons != nil {
		all = append(all, "patched/layer-resolver")
	}
	if s.install != nil {
		all = append(all, "patched/kube-scheduler", "patched/layer-agent")
	}
	for _, name := range []string{"e2e.test", "ginkgo", "kubectl", "kube-proxy", "agnhost", "nonewprivs", "sample-apiserver"} {
		all = append(all, "stock/"+name)
	}
	return all
}

// inputs returns the hash of what an outcome depends on.
func inputs(t *testing.T, s subject, root string) string {
	t.Helper()
	files := []string{root, "addons.yaml", "skip.yaml", "conformance_test.go", "images_test.go"}
	for _, name := range s.binaries() {
		files = append(files, binary(t, name))
	}
	for _, pattern := range []string{"../suites/*.go", "../../cluster/*.go", "../../cluster/*/*.go", "../../scenario/*.go", "../../../deploy/*/*/*.yaml", "../../../deploy/*/*/*/*.yaml"} {
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
func run(t *testing.T, s subject, root string, skips []suites.Skip) suites.Report {
	t.Helper()
	read := func(path string) (suites.Report, error) {
		r, err := suites.ReadReport(path)
		r.Name = s.name
		return r, err
	}
	focus := os.Getenv("FOCUS")
	kept := filepath.Join(cacheDir(t), fmt.Sprintf("%s-%s.xml", s.name, inputs(t, s, root)))
	if r, err := read(kept); err == nil && focus == "" {
		t.Logf("%s: as it was run earlier, with the same inputs: %s", s.name, kept)
		return r
	}
	ctx := t.Context()
	c := start(t, s)
	push(ctx, t, c, root)
	deploy(ctx, t, c)
	if s.install != nil {
		s.install(ctx, t, c)
	}

	report := filepath.Join(outDir, "conformance-"+s.name+".xml")
	if err := os.RemoveAll(report); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(outDir, "conformance-"+s.name+".log"))
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
		"--output-dir=" + folder, "--junit-report=" + filepath.Base(report), "--focus=" + selected(),
	}
	for _, skip := range skips {
		args = append(args, "--skip="+regexp.QuoteMeta(skip.Spec))
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
	t.Logf("%s: %s, in %s", s.name, r.Summary(), time.Since(began).Round(time.Second))
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
func start(t *testing.T, s subject) *cluster.Cluster {
	t.Helper()
	name := "conformance"
	dir := folder.Default(name)
	pki := func(file string) string { return filepath.Join(dir, "pki", file) }
	logs, err := filepath.Abs(filepath.Join(outDir, "logs", name+"-"+s.name))
	if err != nil {
		t.Fatal(err)
	}
	return livetest.StartFor(t, cluster.Config{
		Name: name, Dir: dir, LogDir: logs, Nodes: nodes, Flavour: s.flavour, Logf: t.Logf, Scheduler: s.scheduler, Addons: s.addons,
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
	manifests := bytes.ReplaceAll([]byte(besides), []byte("REGISTRY"), []byte(c.Registry().Address))
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

// second installs layer-agent and the second scheduler, and gives it the pods of all namespaces but kube-system: those
// of the tests have no label that users set.
func second(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	lab, err := scenario.NewLab(c)
	must(t, err)
	agent, err := scenario.PushProgram(ctx, c, repository, scenario.Agent)
	must(t, err)
	agents, err := lab.Agents(ctx, repository, agent)
	must(t, err)
	program, err := scenario.PushProgram(ctx, c, repository, "kube-scheduler")
	must(t, err)
	scheduler, err := scenario.SchedulerObjects(repository, program)
	must(t, err)
	policy, err := kustomize.Build(filepath.Join(repository, "deploy", "scheduler", "by-namespace"), nil)
	must(t, err)
	for _, object := range policy {
		if object.GetKind() == "MutatingAdmissionPolicyBinding" {
			unstructured.RemoveNestedField(object.Object, "spec", "matchResources", "namespaceSelector")
		}
	}
	must(t, lab.Apply(ctx, slices.Concat(agents, scheduler)...))
	must(t, lab.AppReady(ctx, scenario.Agent, nodes))
	must(t, lab.AppReady(ctx, scenario.SecondScheduler, 1))
	must(t, lab.Apply(ctx, policy...))
	livetest.Eventually(t, 3*time.Minute, "the second scheduler gets pods", func(ctx context.Context) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
		pod, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.SchedulerName != scenario.Layers {
			err = fmt.Errorf("a pod is for %s", pod.Spec.SchedulerName)
		}
		return err
	})
}

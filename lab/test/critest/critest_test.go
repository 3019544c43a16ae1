//go:build e2e

package critest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/crio/imagelayers"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	"github.com/layer-locality/layer-locality/lab/test/suites"
)

const (
	// minPassed guards against a run that passes because hardly any spec ran.
	minPassed = 95
	// Specs that run side by side on one node. They mostly wait, for instance
	// until a container ends after SIGTERM.
	parallel = 3
	// seed for the order of specs, the same for all.
	seed = 1
	// timeout of one run. The whole test takes a few minutes, and 15 on a slow machine with much
	// other work.
	timeout = 25 * time.Minute
)

// outDir is where logs and reports of tests go.
var outDir = filepath.Join("..", "..", "..", "_out", "test")

// subject is what critest is run against, on a node of its own.
type subject struct {
	node    string
	runtime cluster.ContainerRuntime
	flavour cluster.Flavour
	// name is that in reports and skip.yaml, and of logs.
	name string
}

// subjects are tested side by side: the patched CRI-O; with FULL=1 also stock CRI-O and containerd, which
// show whether a spec or the laboratory's nodes are to blame.
var subjects = func() []subject {
	all := []subject{{"n1", cluster.CRIO, cluster.Patched, "patched-cri-o"}}
	if os.Getenv("FULL") != "" {
		all = append(all, subject{"n2", cluster.CRIO, cluster.Stock, "stock-cri-o"}, subject{"n3", cluster.Containerd, cluster.Stock, "containerd"})
	}
	return all
}()

// TestCritest checks that all specs pass with the patched CRI-O, which answers with layers. With
// FULL=1, the same ones pass with stock CRI-O and with containerd, which do not.
func TestCritest(t *testing.T) {
	ctx := t.Context()
	var names []string
	for _, s := range subjects {
		names = append(names, s.name)
	}
	skips, err := suites.ReadSkips("skip.yaml", names...)
	if err != nil {
		t.Fatal(err)
	}
	removeSharedMemory(t)
	c := start(t)
	pushed := push(ctx, t, c)
	ginkgo := installGinkgo(ctx, t)

	reports := make([]suites.Report, len(subjects))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, s := range subjects {
		group.Go(func() error {
			r, err := run(groupCtx, c.Node(s.node), s.name, ginkgo, skips)
			if err != nil {
				return fmt.Errorf("critest against %s: %w", s.name, err)
			}
			reports[i] = r
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(outDir, "critest-report.md")
	if err := os.WriteFile(file, markdown(reports, skips), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("report: %s", file)
	for _, r := range reports {
		t.Logf("%s: %s", r.Name, r.Summary())
		for spec, reason := range reasonsOf(r, skips) {
			t.Logf("%s: skipped: %s: %s", r.Name, spec, reason)
		}
	}
	for _, problem := range compare(reports, skips) {
		t.Error(problem)
	}
	for _, s := range subjects {
		t.Run("layers of critest's images with "+s.name, func(t *testing.T) {
			checkLayers(ctx, t, c.Node(s.node), pushed, s.flavour == cluster.Patched)
		})
	}
}

// removeSharedMemory removes, at the end of the test, the System V shared memory
// that critest leaves: nodes share that namespace with the host. It is
// recognized by its size and age; nothing uses it, and its creator has ended.
func removeSharedMemory(t *testing.T) {
	t.Helper()
	before := sharedMemory(t)
	t.Cleanup(func() {
		for id, s := range sharedMemory(t) {
			_, old := before[id]
			if old || s.size != 1<<20 || s.attached != 0 || unix.Kill(s.creator, 0) == nil {
				continue
			}
			if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
				t.Errorf("remove shared memory %d: %v", id, err)
			}
		}
	})
}

type segment struct{ size, creator, attached int }

// sharedMemory reads the segments, by id, from the kernel's table of them.
func sharedMemory(t *testing.T) map[int]segment {
	t.Helper()
	const path = "/proc/sysvipc/shm"
	table, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	segments := map[int]segment{}
	lines := slices.Collect(strings.Lines(string(table)))
	for _, line := range lines[1:] {
		var key, id, mode, last int
		var s segment
		if _, err := fmt.Sscan(line, &key, &id, &mode, &s.size, &s.creator, &last, &s.attached); err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		segments[id] = s
	}
	return segments
}

func start(t *testing.T) *cluster.Cluster {
	t.Helper()
	logs, err := filepath.Abs(filepath.Join(outDir, "critest-log"))
	if err != nil {
		t.Fatal(err)
	}
	runtimes, flavours := map[string]cluster.ContainerRuntime{}, map[string]cluster.Flavour{}
	for _, s := range subjects {
		runtimes[s.node], flavours[s.node] = s.runtime, s.flavour
	}
	return livetest.StartFor(t, cluster.Config{
		Name:              "critest",
		LogDir:            logs,
		Nodes:             len(subjects),
		ContainerRuntimes: runtimes,
		RuntimeOnly:       true,
		PerNode:           func(node string, runtime, _ *cluster.Component) { runtime.Flavour = flavours[node] },
		Logf:              t.Logf,
	})
}

// push fills the cluster's registry with critest's images and makes the nodes
// find them there. The keys of the result are the references that critest uses.
func push(ctx context.Context, t *testing.T, c *cluster.Cluster) map[string]*images.Pushed {
	t.Helper()
	all, err := critestImages(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pushed := map[string]*images.Pushed{}
	for reference, image := range all {
		if pushed[reference], err = images.Push(ctx, c.Registry().Address+"/"+reference, image); err != nil {
			t.Fatal(err)
		}
	}

	for _, node := range c.Nodes() {
		configure := configureCRIO
		if node.ContainerRuntime() == cluster.Containerd {
			configure = configureContainerd
		}
		if err := configure(ctx, c, node); err != nil {
			t.Fatal(err)
		}
	}
	return pushed
}

// configureCRIO has a node with CRI-O find critest's images in the cluster's registry, and publish
// ports of pods.
func configureCRIO(ctx context.Context, c *cluster.Cluster, node *cluster.Node) error {
	local := c.Registry().Address
	registries := []map[string]any{{"location": local, "insecure": true}}
	for _, upstream := range []string{staging, release, legacy} {
		registries = append(registries, map[string]any{"prefix": upstream, "location": local + "/" + upstream, "insecure": true})
	}
	var content bytes.Buffer
	if err := toml.NewEncoder(&content).Encode(map[string]any{"registry": registries}); err != nil {
		return err
	}
	file := filepath.Join(node.Dir(), "critest-registries.conf")
	if err := os.WriteFile(file, content.Bytes(), 0o644); err != nil {
		return err
	}
	err := node.Runtime().Restart(ctx, func(s *cluster.Component) {
		s.Env = append(s.Env, "CONTAINER_REGISTRIES_CONF="+file)
		s.Config = map[string]any{"crio": map[string]any{"runtime": map[string]any{
			"disable_hostport_mapping": false,
		}}}
	})
	if err != nil {
		return err
	}
	// Needed for host ports on 127.0.0.1, which CRI-O leaves to the host.
	const loopback = "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet && " +
		"iptables -t nat -A POSTROUTING -s 127.0.0.0/8 -o cni0 -j MASQUERADE"
	_, err = node.Exec(ctx, "sh", "-c", loopback)
	return err
}

// configureContainerd does the same with containerd, which leaves ports to a plugin of CNI.
func configureContainerd(ctx context.Context, c *cluster.Cluster, node *cluster.Node) error {
	hosts, networks := filepath.Join(node.Dir(), "critest-hosts"), filepath.Join(node.Dir(), "critest-cni")
	local := c.Registry().Address
	for name, server := range map[string]string{
		local: "http://" + local + "/v2", path.Dir(staging): "http://" + local + "/v2/" + path.Dir(staging),
		release: "http://" + local + "/v2/" + release, legacy: "http://" + local + "/v2/" + legacy,
	} {
		text := fmt.Sprintf("server = %q\noverride_path = true\ncapabilities = [\"pull\", \"resolve\"]\n", server)
		if err := os.MkdirAll(filepath.Join(hosts, name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(hosts, name, "hosts.toml"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	const list = "10-pods.conflist"
	content, err := os.ReadFile(filepath.Join(node.Dir(), "cni", list))
	if err != nil {
		return err
	}
	var network map[string]any
	if err := json.Unmarshal(content, &network); err != nil {
		return err
	}
	network["plugins"] = append(network["plugins"].([]any), map[string]any{
		"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "snat": true,
	})
	if content, err = json.Marshal(network); err != nil {
		return err
	}
	if err := os.MkdirAll(networks, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(networks, list), content, 0o644); err != nil {
		return err
	}
	return node.Runtime().Restart(ctx, func(s *cluster.Component) {
		s.Config = map[string]any{"plugins": map[string]any{
			"io.containerd.cri.v1.images":  map[string]any{"registry": map[string]any{"config_path": hosts}},
			"io.containerd.cri.v1.runtime": map[string]any{"cni": map[string]any{"conf_dir": networks}},
		}}
	})
}

// installGinkgo builds the program that critest calls to run specs side by
// side, in the version that critest itself is built with. It returns its folder.
func installGinkgo(ctx context.Context, t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", bin, "github.com/onsi/ginkgo/v2/ginkgo")
	build.Dir = livetest.Module(t, "sigs.k8s.io/cri-tools", "CRI_TOOLS_VERSION")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", build, err, output)
	}
	return bin
}

// run runs critest inside the node. Failed specs are not an error.
func run(ctx context.Context, node *cluster.Node, name, ginkgo string, skips []suites.Skip) (suites.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log, err := os.Create(filepath.Join(outDir, "critest-"+name+".log"))
	if err != nil {
		return suites.Report{}, err
	}
	defer log.Close()
	junit, err := filepath.Abs(filepath.Join(outDir, "critest-"+name+".xml"))
	if err != nil {
		return suites.Report{}, err
	}
	if err := os.RemoveAll(junit); err != nil {
		return suites.Report{}, err
	}
	// Folders that containers mount: removed with the cluster in any case.
	tmp := filepath.Join(node.Dir(), "tmp")
	if err := os.Mkdir(tmp, 0o777); err != nil {
		return suites.Report{}, err
	}
	args := []string{
		"-parallel=" + strconv.Itoa(parallel),
		"-runtime-endpoint=unix://" + node.CRISocket(),
		// A sandbox that is stopped before it listens to signals gets SIGKILL
		// after this time. The default is five minutes.
		"-runtime-service-timeout=1m",
		"-ginkgo.seed=" + strconv.Itoa(seed),
		// critest itself has races, mostly in streams.
		"-ginkgo.flake-attempts=3",
		"-ginkgo.no-color",
		"-ginkgo.junit-report=" + junit,
	}
	for _, s := range skips {
		if s.Of(name) {
			args = append(args, "-ginkgo.skip="+regexp.QuoteMeta(s.Spec))
		}
	}
	critest := node.Command("critest", args...)
	critest.Dir = tmp
	critest.Env = append(critest.Env, "TMPDIR="+tmp, "PATH="+ginkgo+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	critest.Stdout, critest.Stderr = log, log
	runErr := node.Run(ctx, critest)
	r, err := suites.ReadReport(junit)
	r.Name = name
	if err != nil {
		return r, fmt.Errorf("%w (it ended with %w); its output is %s", err, runErr, log.Name())
	}
	if runErr != nil && len(r.Failed) == 0 {
		return r, fmt.Errorf("%w, without a failed spec; its output is %s", runErr, log.Name())
	}
	return r, nil
}

// checkLayers pulls all of critest's images and compares the layers that the runtime
// reports with the registry's manifests, or checks that it reports none.
func checkLayers(ctx context.Context, t *testing.T, node *cluster.Node, pushed map[string]*images.Pushed, want bool) {
	cri, err := node.CRI()
	if err != nil {
		t.Fatal(err)
	}
	for _, reference := range slices.Sorted(maps.Keys(pushed)) {
		request := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reference}}
		if _, err := cri.Image.PullImage(ctx, request); err != nil {
			t.Fatalf("pull %s: %v", reference, err)
		}
	}
	list, err := cri.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]string{}
	for _, image := range list.GetImages() {
		for _, tag := range image.GetRepoTags() {
			found[tag] = image.GetSpec().GetAnnotations()
		}
	}
	for reference, image := range pushed {
		annotations, ok := found[reference]
		if !ok {
			t.Errorf("%s is not listed", reference)
			continue
		}
		expected := map[string]string{}
		if want {
			expected = annotationsOf(image.Layers)
		}
		if !maps.Equal(annotations, expected) {
			t.Errorf("%s is listed with annotations %v, want %v", reference, annotations, expected)
		}
	}
}

func annotationsOf(layers []v1.Descriptor) map[string]string {
	annotations := map[string]string{}
	for _, layer := range layers {
		annotations[imagelayers.Prefix+layer.Digest.String()] = strconv.FormatInt(layer.Size, 10)
	}
	return annotations
}

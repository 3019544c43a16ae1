//go:build e2e

package bats

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// files are those of CRI-O's tests that are about images.
var files = []string{
	"image.bats", "image_remove.bats", "image_volume.bats", "oci_artifacts.bats",
	"artifact_additional_stores.bats", "imagefsinfo.bats", "crio-wipe.bats",
}

// nodes lists which binary is tested on which node.
var nodes = []struct {
	name    string
	flavour cluster.Flavour
}{{"n1", cluster.Stock}, {"n2", cluster.Patched}}

// logs is where the output of bats goes.
const logs = "../../../../_out/test"

var c *cluster.Cluster

// The nodes' own CRI-O is stopped: each test starts one.
func TestMain(m *testing.M) {
	config := cluster.Config{Name: livetest.ClusterName("bats"), Nodes: len(nodes), RuntimeOnly: true}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) { c = started }))
}

// outcome of a test: "passed", "failed" or "skipped: REASON".
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped         = "skipped: "
)

// TestBats runs each file on both nodes at once. Each test has to pass with both binaries, but for
// those that skip.yaml lists, which have to end the same.
func TestBats(t *testing.T) {
	mayNotPass := readSkips(t)
	must(t, os.MkdirAll(logs, 0o755))
	folder := filepath.Join(c.Dir(), "tests")
	prepare := exec.CommandContext(t.Context(), "./prepare.sh", folder, c.Registry().Address)
	prepare.Stderr = os.Stderr
	out, err := prepare.Output()
	must(t, err)
	for _, node := range nodes {
		must(t, c.Node(node.name).Runtime().Stop(t.Context()))
	}

	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			outcomes, begin := make([]map[string]outcome, len(nodes)), time.Now()
			group, ctx := errgroup.WithContext(t.Context())
			for i, node := range nodes {
				group.Go(func() (err error) {
					outcomes[i], err = run(ctx, c.Node(node.name), node.flavour, folder, strings.TrimSpace(string(out)), file)
					return err
				})
			}
			must(t, group.Wait())
			stock, patched := outcomes[0], outcomes[1]
			t.Logf("%d tests, %.0f s", len(stock), time.Since(begin).Seconds())
			for name := range patched {
				if _, both := stock[name]; !both {
					t.Errorf("only with the patched binary: %s", name)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(stock)) {
				t.Run(name, func(t *testing.T) {
					want, got := stock[name], patched[name]
					_, listed := mayNotPass[name]
					switch {
					case got != want:
						t.Errorf("%q with the patched binary, %q with stock", got, want)
					case got == passed:
					case !listed:
						t.Errorf("%s with both, and not in skip.yaml", got)
					default:
						t.Skip(mayNotPass[name])
					}
				})
			}
		})
	}
}

var line = regexp.MustCompile(`(?m)^(ok|not ok) \d+ (.*?)( # skip.*)?$`)

// run runs a file on a node. Tests that fail are not an error.
func run(ctx context.Context, node *cluster.Node, flavour cluster.Flavour, folder, bats, file string) (map[string]outcome, error) {
	command := node.Command(bats, "--tap", file)
	command.Dir = filepath.Join(folder, "test")
	binaries, err := filepath.Abs(filepath.Join("../../../../_build/bin", string(flavour)))
	if err != nil {
		return nil, err
	}
	for i, variable := range command.Env {
		if path, found := strings.CutPrefix(variable, "PATH="); found {
			command.Env[i] = "PATH=" + filepath.Join(folder, "bin") + ":" + path
		}
	}
	command.Env = append(command.Env,
		// The node's own, and short: podman refuses long paths.
		"TMPDIR=/var/lib/crio", "HOME=/var/lib/crio",
		"CRIO_BINARY_PATH="+filepath.Join(binaries, "crio"), "PINNS_BINARY_PATH="+filepath.Join(binaries, "pinns"),
		"ARTIFACTS_PATH="+filepath.Join(folder, "images"),
		"CONTAINER_REGISTRIES_CONF="+filepath.Join(folder, "registries.conf"),
		"CONTAINER_DEFAULT_RUNTIME=runc", "CONTAINER_CNI_PLUGIN_DIR="+cniPlugins(),
		// As without systemd.
		"CONTAINER_CGROUP_MANAGER=cgroupfs", "CONTAINER_CONMON_CGROUP=pod",
		// The default is below /etc, which belongs to the host.
		"CONTAINER_NAMESPACED_AUTH_DIR=/run/crio/auth",
		// As upstream runs them, with more patience.
		"BATS_TEST_RETRIES=1", "CRICTL_TIMEOUT=2m",
	)
	log, err := os.Create(filepath.Join(logs, fmt.Sprintf("bats-%s-%s.log", flavour, file)))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	runErr := node.Run(ctx, command)
	output, err := os.ReadFile(log.Name())
	if err != nil {
		return nil, err
	}
	outcomes, failures := map[string]outcome{}, 0
	for _, found := range line.FindAllStringSubmatch(string(output), -1) {
		switch {
		case found[3] != "":
			outcomes[found[2]] = skipped + outcome(strings.TrimSpace(strings.TrimPrefix(found[3], " # skip")))
		case found[1] == "ok":
			outcomes[found[2]] = passed
		default:
			outcomes[found[2]] = failed
			failures++
		}
	}
	plan := regexp.MustCompile(`(?m)^1\.\.(\d+)$`).FindStringSubmatch(string(output))
	if plan == nil || plan[1] != fmt.Sprint(len(outcomes)) || (runErr != nil) != (failures > 0) {
		return nil, fmt.Errorf("%s with %s: %d outcomes (%v), and bats ended with %w; its output is %s", file, flavour, len(outcomes), plan, runErr, log.Name())
	}
	return outcomes, nil
}

// cniPlugins returns the folder with the distribution's CNI plugins.
func cniPlugins() string {
	all := []string{"/usr/libexec/cni", "/usr/lib/cni", "/opt/cni/bin"}
	return all[max(0, slices.IndexFunc(all, func(path string) bool {
		_, err := os.Stat(filepath.Join(path, "bridge"))
		return err == nil
	}))]
}

// readSkips returns why tests need not pass, by their names.
func readSkips(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("skip.yaml")
	must(t, err)
	var skips map[string]string
	must(t, yaml.UnmarshalStrict(content, &skips))
	return skips
}

var must = testkit.Must

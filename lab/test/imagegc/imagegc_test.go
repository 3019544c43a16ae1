//go:build e2e

package imagegc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/internal/testkit"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const (
	// mega is a megabyte as file systems count.
	mega = 1 << 20
	// All images lie on a base. Together they fill the file system above the high threshold;
	// to come below the low one, most of what they have alone has to go.
	disk, base, own, count = 420 * mega, 230 * mega, 10 * mega, 16
	// Images that are nothing but the base. The kubelet sees all images at once, so it takes them
	// in any order: a rule that goes by order alone, and removes twelve that free something, spares
	// all of these in less than one run of a thousand.
	bases     = 8
	high, low = 85, 65

	// The kubelet collects at its start, when it has no statistics of the file system yet, and then
	// every five minutes.
	period = 5 * time.Minute
)

var c *cluster.Cluster

func TestMain(m *testing.M) {
	if os.Getenv("FULL") == "" {
		// Exit status 0: the test below gives the reason.
		os.Exit(m.Run())
	}
	config := cluster.Config{
		Name: livetest.ClusterName("imagegc"), Nodes: 2, Flavour: cluster.Patched,
		Kubelet: cluster.Component{Config: map[string]any{
			"imageGCHighThresholdPercent": high,
			"imageGCLowThresholdPercent":  low,
		}},
		PerNode: func(node string, crio, kubelet *cluster.Component) {
			if node == stock {
				crio.Flavour, kubelet.Flavour = cluster.Stock, cluster.Stock
				return
			}
			crio.Env = []string{"CRIO_IMAGE_EXCLUSIVE_BYTES=on"}
			kubelet.FeatureGates = map[string]bool{"ImageGCExclusiveBytes": true}
		},
	}
	os.Exit(livetest.Main(m, config, func(started *cluster.Cluster) { c = started }))
}

// What the nodes run.
const stock, exclusive = "n1", "n2"

var must = testkit.Must

// TestCollection fills the disks of two nodes with the same images. Stock counts the base with
// each image, removes one or two, and stops far above the low threshold; the next pass, five minutes
// later, has to go on. With exclusive bytes, one pass comes below it, and leaves the images that are
// nothing but the base.
func TestCollection(t *testing.T) {
	// The kubelet collects every five minutes.
	livetest.Long(t, "upstream-kubernetes' tests of what an image frees")
	begin := time.Now()
	nodes := []*cluster.Node{c.Node(stock), c.Node(exclusive)}
	for _, node := range nodes {
		must(t, node.Kubelet().Stop(t.Context()))
		must(t, scenario.SmallStorage(t.Context(), node, disk))
	}
	names := pushAll(t)
	before := map[string]int64{}
	for _, node := range nodes {
		for _, name := range names {
			_, err := livetest.Pull(t.Context(), node, name)
			must(t, err)
		}
		before[node.Name] = used(t, node)
		if share := before[node.Name] * 100 / disk; share <= high {
			t.Fatalf("%s: the disk is %d %% full, nothing would be collected", node.Name, share)
		}
	}
	t.Logf("filled after %.0f s", time.Since(begin).Seconds())
	// Images that are there when a kubelet starts are old enough; it takes later ones for new
	// until it looks again, which is when it collects.
	for _, node := range nodes {
		must(t, node.Kubelet().Start(t.Context()))
	}

	rows := [][]string{{"node", "before", "after", "images left of " + fmt.Sprint(len(names)), fmt.Sprintf("of %d base images", bases)}}
	after, left := map[string]int64{}, map[string][]string{}
	// A pass begins with the first removal, and ends when nothing is removed any more.
	removes := func(node *cluster.Node, before int) {
		t.Helper()
		livetest.Eventually(t, period+time.Minute, node.Name+" removes images", func(context.Context) error {
			if now := present(t, node, names); len(now) == before {
				return fmt.Errorf("all %d are there", len(now))
			}
			return nil
		})
	}
	for _, node := range nodes {
		removes(node, len(names))
		for last := -1; last != len(left[node.Name]); time.Sleep(10 * time.Second) {
			last = len(left[node.Name])
			left[node.Name] = present(t, node, names)
		}
		after[node.Name] = used(t, node)
		rows = append(rows, []string{node.Name, percent(before[node.Name]), percent(after[node.Name]), fmt.Sprint(len(left[node.Name])), fmt.Sprint(len(present(t, node, names[:bases])))})
	}
	livetest.Table(t, rows...)
	if share := after[exclusive] * 100 / disk; share > low {
		t.Errorf("%s is %d %% full after a pass, want at most %d %%", exclusive, share, low)
	}
	if share := after[stock] * 100 / disk; share <= low {
		t.Errorf("%s is only %d %% full after a pass: stock does as well, and nothing is shown", stock, share)
	}
	if n := len(present(t, c.Node(exclusive), names[:bases])); n != bases {
		t.Errorf("%s removed %d images of which all layers are needed", exclusive, bases-n)
	}
	// No more than had to go.
	if n := len(left[exclusive]); n < bases+(low*disk/100-base)/own-2 {
		t.Errorf("%s has only %d images left", exclusive, n)
	}

	removes(c.Node(stock), len(left[stock]))
}

func percent(bytes int64) string { return fmt.Sprintf("%d %%", bytes*100/disk) }

// pushAll pushes the images that are nothing but the base, and then others on it.
func pushAll(t *testing.T) (names []string) {
	t.Helper()
	bottom := images.Layer{Name: "base", Size: base}
	for i := range bases + count {
		layers := []images.Layer{bottom}
		if i >= bases {
			layers = append(layers, images.Layer{Name: fmt.Sprint("own-", i), Size: own})
		}
		pushed := livetest.Push(t, fmt.Sprintf("%s/imagegc/%d:v1", c.Registry().Address, i), images.Image{
			Layers: layers, Entrypoint: []string{fmt.Sprint("/none-", i)},
		})
		names = append(names, pushed.Reference)
	}
	return names
}

// present returns which of the images a node has.
func present(t *testing.T, node *cluster.Node, names []string) (found []string) {
	t.Helper()
	list, err := livetest.List(t.Context(), node)
	must(t, err)
	for _, name := range names {
		if slices.ContainsFunc(list, func(image *runtimeapi.Image) bool { return slices.Contains(image.GetRepoTags(), name) }) {
			found = append(found, name)
		}
	}
	return found
}

// used returns how many bytes of a node's small file system are in use.
func used(t *testing.T, node *cluster.Node) int64 {
	t.Helper()
	out, err := node.Exec(t.Context(), "df", "--block-size=1", "--output=used", "/var/lib/containers/storage")
	must(t, err)
	var bytes int64
	_, err = fmt.Sscan(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(out)), "Used")), &bytes)
	must(t, err)
	return bytes
}

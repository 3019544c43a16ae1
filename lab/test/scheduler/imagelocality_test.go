//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/kubectllayers/plan"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// side is one scheduler of a comparison, with its own image, so that no side
// finds what the other has pulled. Pods name the image as users do, nodes as
// CRI-O does.
type side struct {
	column    string
	scheduler string
	image     string // short name
}

func (s side) fullName() string { return "docker.io/library/" + s.image }

// sides returns both schedulers, each with an image: NAME:in-tree and
// NAME:layers.
func sides(name string) (inTree, ours side) {
	return side{"in-tree", scenario.Stock, name + ":in-tree"}, side{"ours", scenario.Layers, name + ":layers"}
}

// TestImageOnOneNode: one of four nodes has a 90 MB image that 12 pods need.
func TestImageOnOneNode(t *testing.T) {
	const holder, pods = "n3", 12
	inTree, ours := sides("ninety")
	results := compareScores(t, holder, 90_000_000, inTree, ours, pods)

	if got := results[ours]; got.perNode[holder] != pods || got.bytes != 0 {
		t.Errorf("ours: %d of %d pods went where the image is, and %d bytes were pulled", got.perNode[holder], pods, got.bytes)
	}
}

// TestSmallImage: one of four nodes has busybox. Its 771 kB must not cause
// imbalance.
func TestSmallImage(t *testing.T) {
	livetest.Long(t, "TestImageOnOneNode, and the unit tests of scores")
	const holder, pods = "n3", 12
	inTree, ours := sides("busybox")
	results := compareScores(t, holder, 771_000, inTree, ours, pods)

	ratings, err := lab.Rate(t.Context(), ours.image)
	must(t, err)
	if known := ratings.Images[0].Known; known != "name" && known != "layers" {
		t.Errorf("%s is %q to the plugin: the short name does not meet %s", ours.image, known, ours.fullName())
	}
	for s, result := range results {
		for node, n := range result.perNode {
			if n > pods/2 {
				t.Errorf("%s: %d of %d pods went to %s: not balanced", s.column, n, pods, node)
			}
		}
	}
}

// outcome is the result for the pods of one side.
type outcome struct {
	perNode map[string]int
	// bytes is what the nodes pulled for them.
	bytes int64
}

// compareScores gives one node an image for each side and runs pods with it. It
// prints how both schedulers rate the four nodes, why, and the outcome.
func compareScores(t *testing.T, holder string, bytes int64, inTree, ours side, pods int) map[side]outcome {
	t.Helper()
	var all []placement
	for _, s := range []side{inTree, ours} {
		all = append(all, placement{Node: holder, Reference: s.fullName(), Image: hubImage(t, s.image, bytes, 1)})
	}
	provide(t, all...)

	because := explain(t, inTree.image)
	ratings, err := lab.Rate(t.Context(), ours.image)
	must(t, err)

	result := map[side]outcome{}
	scores := map[side]map[string]int64{}
	for _, s := range []side{inTree, ours} {
		repository, _, _ := strings.Cut("library/"+s.image, ":")
		before, err := scenario.Pulled(c, repository)
		must(t, err)
		names := submit(t, strings.ReplaceAll(s.image, ":", "-"), pods, scenario.Pod{Image: s.image, Scheduler: s.scheduler})
		must(t, lab.Ready(t.Context(), names...))
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		after, err := scenario.Pulled(c, repository)
		must(t, err)
		result[s] = outcome{scenario.PerNode(nodes), after.Total() - before.Total()}
		plugin := "LayerLocality"
		if s == inTree {
			plugin = "ImageLocality"
		}
		scores[s], err = lab.Scores(names[0], plugin)
		must(t, err)
		must(t, lab.Remove(t.Context(), names...))
	}

	rows := [][]string{{"node", "plugin", "score", "because"}}
	for _, node := range c.Nodes() {
		name := node.Name
		score, ok := scores[inTree][name]
		if !ok || score != because[name].Points {
			t.Errorf("%s: ImageLocality gave %d (%t), the explanation is %+v", name, score, ok, because[name])
		}
		if score != 0 {
			t.Errorf("%s: ImageLocality gave %d", name, score)
		}
		rating, _ := ratings.Node(name)
		if got := scores[ours][name]; got != 4*rating.Score { // multiplied by its weight
			t.Errorf("%s: LayerLocality gave 4 x %d = %d, the scheduler's log has %d", name, rating.Score, 4*rating.Score, got)
		}
		rows = append(rows,
			[]string{name, "ImageLocality", fmt.Sprint(score), because[name].Why},
			[]string{"", "LayerLocality", fmt.Sprintf("4 x %d", rating.Score), rating.Why})
	}
	t.Logf("%d pods each of %s and %s, images of %s on %s", pods, inTree.image, ours.image, livetest.Megabytes(bytes), holder)
	livetest.Table(t, rows...)
	for _, s := range []side{inTree, ours} {
		t.Logf("%s: %s; %s pulled", s.column, spread(result[s].perNode), livetest.Megabytes(result[s].bytes))
	}
	return result
}

// explain returns how ImageLocality rates an image on each node, from what the Nodes report.
func explain(t *testing.T, image string) map[string]plan.ImageLocalityRating {
	t.Helper()
	list, err := lab.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	ratings := map[string]plan.ImageLocalityRating{}
	pod := &corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}
	for _, rating := range plan.ImageLocality(pod, list.Items) {
		ratings[rating.Node] = rating
	}
	return ratings
}

// TestTwoImages: image A is on one node, image B on another. There are 21 pods
// with each, and a profile that only scores locality.
func TestTwoImages(t *testing.T) {
	livetest.Long(t, "TestImageOnOneNode")
	const pods = 21
	use(t, "n1", "n2")
	columns := []side{
		{column: "ours", scheduler: onlyLayers, image: "layers"},
		{column: "in-tree", scheduler: onlyImages, image: "in-tree"},
		{column: "in-tree, ties as upstream", scheduler: onlyImages, image: "unfixed"},
	}
	holders := map[string]string{"a": "n1", "b": "n2"}
	var all []placement
	for _, column := range columns {
		for letter, node := range holders {
			s := side{image: letter + ":" + column.image}
			all = append(all, placement{Node: node, Reference: s.fullName(), Image: hubImage(t, s.image, 30_000_000, 1)})
		}
	}
	provide(t, all...)

	because := explain(t, "a:in-tree")["n1"]
	rows := [][]string{{"", "pods on n1 | n2", "of them where their image is"}}
	for i, column := range columns {
		if i == 2 {
			useStockScheduler(t)
		}
		var names []string
		var submitted []scenario.Pod
		for n := range pods {
			for _, letter := range []string{"a", "b"} {
				name := fmt.Sprintf("%s-%s-%d", letter, column.image, n+1)
				names = append(names, name)
				submitted = append(submitted, scenario.Pod{
					Name: name, Image: letter + ":" + column.image, Scheduler: column.scheduler,
				})
			}
		}
		removeAtEnd(t, names...)
		must(t, lab.Submit(t.Context(), submitted...))
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		right := 0
		for name, node := range nodes {
			if holders[name[:1]] == node {
				right++
			}
		}
		perNode := scenario.PerNode(nodes)
		rows = append(rows, []string{column.column, fmt.Sprintf("%d | %d", perNode["n1"], perNode["n2"]), fmt.Sprintf("%d of %d", right, len(nodes))})
		if column.scheduler == onlyLayers && (right != len(nodes) || perNode["n1"] != pods) {
			t.Errorf("ours: %d of %d pods went where their image is: %v", right, len(nodes), nodes)
		}
		if column.scheduler == onlyImages {
			for _, letter := range slices.Sorted(maps.Keys(holders)) {
				scores, err := lab.Scores(letter+"-"+column.image+"-1", "ImageLocality")
				must(t, err)
				if len(scores) != 2 || scores["n1"] != 0 || scores["n2"] != 0 {
					t.Errorf("%s: ImageLocality gave pods of %s %v", column.column, letter, scores)
				}
			}
		}
		must(t, lab.Drop(t.Context(), names...)) // only their nodes matter here
	}
	t.Log("ImageLocality gave 0 to both nodes; to n1 for A, because " + because.Why)
	livetest.Table(t, rows...)
}

// useStockScheduler runs upstream's binary, which has neither LayerLocality nor
// the fix for equal scores, until the end of the test.
func useStockScheduler(t *testing.T) {
	t.Helper()
	patched, err := c.Scheduler().Settings()
	must(t, err)
	must(t, c.Scheduler().Restart(t.Context(), func(s *cluster.Component) {
		s.Flavour = cluster.Stock
		s.Config = map[string]any{"profiles": []map[string]any{{"schedulerName": scenario.Stock}, scenario.Only(onlyImages, "ImageLocality")}}
	}))
	t.Cleanup(func() {
		if err := c.Scheduler().Restart(context.Background(), func(s *cluster.Component) { *s = patched }); err != nil {
			t.Error(err)
		}
	})
}

package layerlocality

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

// The debug endpoint and the metric show how it is known what nodes have.
func TestProvenance(t *testing.T) {
	all := nodes("n1", "n2", "n3")
	of := digest("manifest")
	all[0].Status.Images = []v1.ContainerImage{{Names: []string{"quay.io/a@" + of, "quay.io/a:1"}, SizeBytes: mb}, {Names: []string{"quay.io/b:1"}, SizeBytes: mb}}
	s := newSuite(t, args(), all)
	s.agent.Sink.SetImages("test", "n2", []index.Image{nodeImage("quay.io/a:1", layers{"base": 100, "a": 100})})
	s.followed.Set(imageref.Canonical(of), index.Manifest{Layers: []index.Layer{{Digest: digest("base"), Size: 100 * mb}, {Digest: digest("a"), Size: 100 * mb}}})

	recorder := httptest.NewRecorder()
	s.factory.DebugHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DebugPath+"?image=quay.io/a:1&image=quay.io/b:1", nil))
	var rating Rating
	if err := json.Unmarshal(recorder.Body.Bytes(), &rating); err != nil {
		t.Fatalf("%s: %v", recorder.Body, err)
	}
	const a, b = imageref.Canonical("quay.io/a:1"), imageref.Canonical("quay.io/b:1")
	want := map[string][]NodeImage{
		"n1": {{a, locality.FromManifest}, {b, locality.FromName}}, "n2": {{a, locality.FromLayers}}, "n3": nil,
	}
	for _, n := range rating.Nodes {
		if !reflect.DeepEqual(n.Has, want[n.Node]) {
			t.Errorf("%s has %v, want %v", n.Node, n.Has, want[n.Node])
		}
		counts := map[locality.Provenance]int{}
		for _, image := range n.Has {
			counts[image.By]++
		}
		if len(counts)+len(n.Images) > 0 && !reflect.DeepEqual(n.Images, counts) {
			t.Errorf("images of %s: %v, want %v", n.Node, n.Images, counts)
		}
	}
	const name = "scheduler_layerlocality_node_images"
	expected := "# HELP " + name + " [ALPHA] Pairs of a node and an image it has, by what that is known from: the node's layers (layers), its name for the image and an ImageManifest (manifest), its name alone (name), pods that use or used it there (use).\n" +
		"# TYPE " + name + " gauge\n" + name + `{by="layers"} 1` + "\n" + name + `{by="manifest"} 1` + "\n" + name + `{by="name"} 1` + "\n" + name + `{by="use"} 0` + "\n"
	const without = "scheduler_layerlocality_nodes_without_node_layers"
	expected += "# HELP " + without + " [ALPHA] Ready nodes with Linux that have no NodeLayers, although others have, and state no layers themselves.\n" +
		"# TYPE " + without + " gauge\n" + without + " 2\n"
	const stale = "scheduler_layerlocality_nodes_with_stale_node_layers"
	expected += "# HELP " + stale + " [ALPHA] Ready nodes whose NodeLayers is not renewed.\n# TYPE " + stale + " gauge\n" + stale + " 3\n"
	collector := newProvenanceCollector(s.plugin.tracker.ImagesOfAll, func() (missing, stale int) { return 2, 3 })
	if err := testutil.CustomCollectAndCompare(collector, strings.NewReader(expected), name, without, stale); err != nil {
		t.Error(err)
	}
}

// What kube-scheduler serves has the metrics that are counted when they are asked for.
func TestMetricsAreServed(t *testing.T) {
	newSuite(t, args(), nodes("n1"))
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, family := range families {
		served[family.GetName()] = true
	}
	for _, name := range []string{"node_images", "nodes_without_node_layers", "nodes_with_stale_node_layers", "pending_bytes"} {
		if name = subsystem + "_" + prefix + name; !served[name] {
			t.Errorf("%s is not served", name)
		}
	}
}

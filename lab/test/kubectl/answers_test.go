//go:build integration

package kubectl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// node is the JSON of a node.
type node struct {
	Name           string         `json:"name"`
	Images         int            `json:"images"`
	Layers         int            `json:"layers"`
	Bytes          int64          `json:"bytes"`
	ElsewhereBytes int64          `json:"elsewhereBytes"`
	Source         string         `json:"source"`
	Known          map[string]int `json:"known"`
	Reported       time.Time      `json:"reported"`
	StaleAgent     bool           `json:"staleAgent"`
	CutImages      int            `json:"cutImages"`
	InvalidLines   int            `json:"invalidLines"`
	Runtime        string         `json:"runtime"`
	Held           []struct {
		Names                          []string `json:"names"`
		Bytes, SharedBytes, FreedBytes int64
		Known                          string `json:"known"`
	} `json:"held"`
}

// What nodes hold comes from the patched kubelet, an agent, ImageManifests or nothing but names;
// each is shown, with its bytes.
func TestNodes(t *testing.T) {
	var nodes []node
	answers(t, &nodes, "nodes")
	if len(nodes) != 6 {
		t.Fatalf("%+v", nodes)
	}
	const four, three = 2*90 + 90, 3 * 90 // bases of four and of three images, in MB
	for _, want := range []node{
		{Name: byAgent, Images: 4, Layers: 6 + 4, Bytes: (four + 1 + 2 + 3 + 4) * mb, ElsewhereBytes: (four + 3 + 4) * mb, Source: "agent", CutImages: 1, InvalidLines: 1},
		{Name: byKubelet, Images: 4, Layers: 10, Bytes: (three + 3 + 4 + 5 + 6) * mb, ElsewhereBytes: (three + 3 + 4 + 6) * mb, Source: "kubelet"},
		{Name: joined, Images: 3, Layers: 9, Bytes: (three + 6 + 7 + 8) * mb, ElsewhereBytes: (three + 6) * mb, Source: "joined"},
		{Name: byNames, Images: 1, Source: "names"},
		{Name: staleAgent, Source: "nothing", StaleAgent: true},
		{Name: empty, Source: "nothing"},
	} {
		i := slices.IndexFunc(nodes, func(n node) bool { return n.Name == want.Name })
		if i < 0 {
			t.Errorf("no %s", want.Name)
			continue
		}
		got := nodes[i]
		if want.Name == byNames { // an estimate
			got.Bytes = 0
		}
		if got.Reported.IsZero() || got.Reported.After(time.Now()) {
			t.Errorf("%s reported %s", got.Name, got.Reported)
		}
		got.Known, got.Reported, got.Runtime = nil, time.Time{}, ""
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
	}
	table := layers(t, "nodes")
	if table.code != 0 || table.err != "" || !strings.Contains(table.out, "KNOWN FROM") || strings.Contains(table.out, "RUNTIME") {
		t.Errorf("%+v", table)
	}
	if wide := layers(t, "nodes", "-o", "wide"); !strings.Contains(wide.out, "cri-o://1.36.3\uFFFD[31m") || !strings.Contains(wide.out, "1 image, 30 layers, 1 invalid line ") {
		t.Errorf("%+v", wide)
	}
	if names := layers(t, "nodes", "-o", "name", "-l", "kind in (joined,empty)"); names.out != "node/empty\nnode/joined\n" {
		t.Errorf("%+v", names)
	}
	if text := layers(t, "nodes", "-o", "yaml", "-l", "kind=empty"); !strings.Contains(text.out, "kind: Nodes\n") {
		t.Errorf("%+v", text)
	}
}

// The layers of a Node that a patched kubelet states come through the program: a client on stock
// types would drop them.
func TestNode(t *testing.T) {
	var got node
	answers(t, &got, "node", byKubelet)
	if len(got.Held) != 4 || got.Source != "kubelet" {
		t.Fatalf("%+v", got)
	}
	// app-2 and app-5 are on the same base; the others are alone on theirs.
	for i, want := range []struct {
		name                 string
		bytes, shared, freed int64
	}{{"app-5", 96, 90, 6}, {"app-4", 95, 0, 95}, {"app-3", 94, 0, 94}, {"app-2", 93, 90, 3}} {
		held := got.Held[i]
		if !strings.Contains(held.Names[0], want.name) || held.Bytes != want.bytes*mb || held.SharedBytes != want.shared*mb || held.FreedBytes != want.freed*mb || held.Known != "layers" {
			t.Errorf("%+v, want %+v", held, want)
		}
	}
	if table := layers(t, "node", "node/"+joined); table.code != 0 || !strings.Contains(table.out, "manifest") || !strings.Contains(table.out, "known from manifests") {
		t.Errorf("%+v", table)
	}
}

// Of each node, node and nodes print the same. Others are read where its images are known by name only:
// otherwise their sizes would be others.
func TestNodeAsNodes(t *testing.T) {
	var nodes []node
	answers(t, &nodes, "nodes")
	for _, want := range nodes {
		var got node
		answers(t, &got, "node", want.Name)
		whole := want.Name == byNames
		if !whole {
			want.ElsewhereBytes = 0
		}
		if !got.Reported.Equal(want.Reported) {
			t.Errorf("%s reported %s, %s", want.Name, got.Reported, want.Reported)
		}
		got.Held, got.Reported = nil, want.Reported
		if !reflect.DeepEqual(got, want) {
			t.Errorf("node has\n%+v, nodes\n%+v", got, want)
		}
		if out := layers(t, "node", want.Name, "-o", "json").out; strings.Contains(out, "elsewhereBytes") != whole {
			t.Errorf("%s: %s", want.Name, out)
		}
	}
}

func TestImage(t *testing.T) {
	var images []struct {
		Nodes    map[string]int
		Variants []struct {
			Platform, From string
			Bytes          int64
			Layers         []struct {
				Digest string
				Bytes  int64
				Nodes  int
			}
		}
		Objects []struct {
			Name            string
			Confirmed       time.Time
			Reason, Message string
		}
	}
	answers(t, &images, "image", "registry.example.com/team/app-2:v1")
	v := images[0].Variants
	if len(v) != 1 || v[0].Bytes != 93*mb || v[0].From != "ImageManifest" || v[0].Platform != "linux/amd64" || len(v[0].Layers) != 3 ||
		v[0].Layers[0].Digest != digest("base-2") || v[0].Layers[0].Nodes != 3 || v[0].Layers[2].Nodes != 2 {
		t.Errorf("%+v", v)
	}
	if n := images[0].Nodes; n["layers"] != 2 || len(n) != 1 || len(images[0].Objects) != 1 || !images[0].Objects[0].Confirmed.Equal(now.Add(-5*time.Minute)) {
		t.Errorf("%+v", images[0])
	}
	table := layers(t, "image", "registry.example.com/team/secret:v1", "registry.example.com/other/thing:v1")
	if table.code != 0 || !strings.Contains(table.out, "Unauthorized: \uFFFD[2J\uFFFDthe registry wants credentials xxx") || strings.Contains(table.out, strings.Repeat("x", 400)) ||
		!strings.Contains(table.out, "thing:v1: its layers are not known; on 1 (1 by name) of 6 nodes") {
		t.Errorf("%+v", table)
	}
}

// workload is a deployment, with pods as its template makes them.
func workload(t *testing.T, name, scheduler string, images ...string) {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q,"namespace":"default"},"spec":{"selector":{"matchLabels":{"app":%q}},"template":%s}}`, name, name, template(name, scheduler, images...))
	must(t, apply(t.Context(), []byte(text)))
}

func template(name, scheduler string, images ...string) string {
	var containers []map[string]any
	for i, image := range images {
		containers = append(containers, map[string]any{"name": fmt.Sprint("c", i), "image": image, "resources": map[string]any{"requests": map[string]string{"cpu": "100m"}}})
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": name}}, "spec": map[string]any{"schedulerName": scheduler, "containers": containers}})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestWorkloads(t *testing.T) {
	workload(t, "web", "layer-locality", "registry.example.com/team/app-2:v1", "registry.example.com/team/app-3:v1")
	if r := layers(t, "deployment", "web", "-o", "name"); r.out != "registry.example.com/team/app-2:v1\nregistry.example.com/team/app-3:v1\n" {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "image", "deployment/web", "registry.example.com/team/app-4:v1", "-o", "name"); r.out != "registry.example.com/team/app-2:v1\nregistry.example.com/team/app-3:v1\nregistry.example.com/team/app-4:v1\n" || r.err != "" {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "deploy", "web", "-o", "json"); r.code != 0 || !strings.HasPrefix(r.out, "{") || r.err != "note: kubectl layers deployment goes with the next release: write kubectl layers image deployment/web\n" {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "plan", "deploy/web"); r.code != 0 || !strings.Contains(r.out, "deployment/web fits on 6 of 6 nodes") {
		t.Errorf("%+v", r)
	}
	must(t, apply(t.Context(), fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"web","namespace":"default"},"spec":{"selector":{"matchLabels":{"app":"web"}},"template":%s}}`,
		template("web", "layer-locality", "registry.example.com/team/app-2:v1"))))
	if r := layers(t, "plan", "web"); r.code != 1 || r.err != "error: \"web\" fits deployment/web, statefulset/web: name one of them\n" {
		t.Errorf("%+v", r)
	}
}

func TestShared(t *testing.T) {
	var shared struct {
		Bases []struct {
			Digests           []string
			Bytes, SavedBytes int64
			Images, Nodes     int
		}
		Layers []struct {
			Digest string
			Images int
		}
	}
	answers(t, &shared, "shared")
	// Images 0 to 7 are on nodes: three on base-0 and base-1, two on base-2.
	if len(shared.Bases) != 3 || len(shared.Layers) != 6 || len(shared.Bases[0].Digests) != 2 || shared.Bases[0].Bytes != 90*mb || shared.Bases[0].Images != 3 || shared.Bases[0].SavedBytes != 180*mb || shared.Bases[2].Images != 2 {
		t.Errorf("%+v", shared)
	}
	if r := layers(t, "shared", "--layers"); r.code != 0 || strings.Count(r.out, "\n") != 1+6 || !strings.HasPrefix(strings.Split(r.out, "\n")[1], "sha256:") || !strings.HasSuffix(strings.Split(r.out, "\n")[1], "60.0 MB   3        3       120.0 MB") {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "shared", "--layers", "--limit", "2"); r.code != 0 || !strings.HasSuffix(r.out, "\n4 more: --limit 0 shows them.\n") {
		t.Errorf("%+v", r)
	}
	// Of an image that a node names, its layers may not be known.
	if r := layers(t, "shared", "--images", "registry.example.com/other/thing:v1", "registry.example.com/team/none:v1"); r.code != 0 || !strings.Contains(r.out, "other/thing:v1: its layers are not known") {
		t.Errorf("%+v", r)
	}
	if r := layers(t, "shared", "--images", "registry.example.com/team/none:v1", "registry.example.com/team/nor:v1"); r.code != 1 || !strings.Contains(r.err, "no node has it, and no ImageManifest names it") {
		t.Errorf("%+v", r)
	}
	var m struct{ CommonBytes [][]int64 }
	answers(t, &m, "shared", "--images", "registry.example.com/team/app-0:v1", "registry.example.com/team/app-3:v1", "registry.example.com/team/app-1:v1")
	if want := [][]int64{{91 * mb, 90 * mb, 0}, {90 * mb, 94 * mb, 0}, {0, 0, 92 * mb}}; !slices.EqualFunc(m.CommonBytes, want, slices.Equal) {
		t.Errorf("%v", m.CommonBytes)
	}
}

func TestPlan(t *testing.T) {
	type plan struct {
		Nodes []struct {
			Node                                   string
			TotalBytes, PresentBytes, MissingBytes int64
			Seconds                                *float64
			RuledOut                               []string
		}
	}
	var p plan
	answers(t, &p, "plan", "--image", "registry.example.com/team/app-8:v1", "--bandwidth", "80M")
	// app-8 is on base-2, which three nodes have.
	for i, n := range p.Nodes {
		want := int64(99 * mb)
		if i < 3 {
			want = 9 * mb
		}
		if n.MissingBytes != want || n.TotalBytes != 99*mb || n.PresentBytes != n.TotalBytes-want || n.Seconds == nil || *n.Seconds != float64(want)/10e6 || len(n.RuledOut) != 0 {
			t.Errorf("%+v, want %d missing", n, want)
		}
	}
	// What rules nodes out.
	file := filepath.Join(t.TempDir(), "pod.yaml")
	must(t, os.WriteFile(file, []byte(`
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: x}}
- apiVersion: batch/v1
  kind: CronJob
  metadata: {name: nightly}
  spec:
    jobTemplate:
      spec:
        template:
          spec:
            nodeSelector: {kind: by-agent}
            containers: [{name: c, image: "registry.example.com/team/app-8:v1", resources: {requests: {cpu: "65"}}}]
`), 0o600))
	p = plan{}
	answers(t, &p, "plan", "-f", file)
	for _, n := range p.Nodes {
		want := []string{"selector or node affinity", "too little cpu"}
		if n.Node == byAgent {
			want = want[1:]
		}
		if !slices.Equal(n.RuledOut, want) {
			t.Errorf("%s is ruled out by %q, want %q", n.Node, n.RuledOut, want)
		}
	}
	text, err := os.ReadFile(file)
	must(t, err)
	if r := layersIn(t, strings.NewReader(string(text)), "--kubeconfig", kubeconfig, "plan", "-f", "-"); r.code != 0 || !strings.Contains(r.out, "cronjob/nightly fits on 0 of 6 nodes") {
		t.Errorf("%+v", r)
	}
	node := &corev1.Node{}
	must(t, objects.Get(t.Context(), nameOf("", empty), node))
	node.Spec.Taints = []corev1.Taint{{Key: "only", Value: "others", Effect: corev1.TaintEffectNoSchedule}}
	must(t, objects.Update(t.Context(), node))
	defer func() {
		node.Spec.Taints = nil
		must(t, objects.Update(t.Context(), node))
	}()
	if r := layers(t, "plan", "--image", "registry.example.com/team/app-8:v1"); !strings.Contains(r.out, "taint only=others:NoSchedule") || !strings.Contains(r.out, "fits on 5 of 6 nodes") {
		t.Errorf("%+v", r)
	}
}

func TestImageLocality(t *testing.T) {
	var points []struct {
		Node   string
		Points int64
		Why    string
	}
	answers(t, &points, "imagelocality", "--image", "registry.example.com/team/app-2:v1")
	// 186 MB, as the node states it, on one of six nodes.
	for _, p := range points {
		if want := p.Node == byKubelet; want != strings.Contains(p.Why, "1 of 6 nodes") {
			t.Errorf("%+v", p)
		}
	}
	if len(points) != 6 {
		t.Errorf("%+v", points)
	}
}

// pod creates a pod.
func pod(t *testing.T, name, scheduler string, images ...string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{SchedulerName: scheduler}}
	for i, image := range images {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: fmt.Sprint("c", i), Image: image, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		})
	}
	must(t, objects.Create(t.Context(), p))
	return p
}

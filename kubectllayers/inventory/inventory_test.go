package inventory

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/locality"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

const mb = 1_000_000

func digestOf(letter string) string { return "sha256:" + strings.Repeat(letter, 64) }

func layer(letter string, size int64) v1alpha1.ImageLayer {
	return v1alpha1.ImageLayer{Digest: digestOf(letter), Size: size}
}

// Layers of the images here: two applications on a base.
var (
	base   = layer("a", 60*mb)
	tools  = layer("b", 30*mb)
	first  = layer("c", 2*mb)
	second = layer("d", 5*mb)
)

var heartbeat = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func node(name string, images ...v1.ContainerImage) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	n.Status.NodeInfo = v1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "cri-o://1.36.3"}
	n.Status.Images = images
	n.Status.Conditions = []v1.NodeCondition{
		{Type: v1.NodeReady, LastHeartbeatTime: metav1.NewTime(heartbeat)}, {Type: v1.NodeDiskPressure, LastHeartbeatTime: metav1.NewTime(heartbeat.Add(-time.Hour))},
	}
	return n
}

func named(names ...string) v1.ContainerImage {
	return v1.ContainerImage{Names: names, SizeBytes: 50 * mb}
}

// held is an image on a node with an agent.
type held struct {
	name   string
	layers []v1alpha1.ImageLayer
}

// agent notes what the NodeLayers of a node has, as collect does.
func agent(c *collect.Cluster, name string, renewed time.Time, images ...held) {
	o := &v1alpha1.NodeLayers{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("uid-" + name)}}},
		Spec:       v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, RenewSeconds: 600, RenewTime: metav1.NewTime(renewed)},
	}
	for _, image := range images {
		entry := v1alpha1.NodeImage{Names: []string{image.name}}
		for _, l := range image.layers {
			place := slices.Index(o.Spec.Layers, l.String())
			if place < 0 {
				place = len(o.Spec.Layers)
				o.Spec.Layers = append(o.Spec.Layers, l.String())
			}
			entry.Layers = append(entry.Layers, place)
		}
		o.Spec.Images = append(o.Spec.Images, entry.String())
	}
	a := collect.Agent{Reuse: o.Spec.Reuse, RenewTime: renewed, ListedImages: len(o.Spec.Images), ListedLayers: len(o.Spec.Layers)}
	a.TotalImages, a.TotalLayers = a.ListedImages+1, a.ListedLayers+2
	if err := c.Reports.Add(o, c.Now); err != nil {
		a.Problem, a.Invalid = err.Error(), 1
	}
	c.Agents[name] = a
}

func manifest(t *testing.T, c *collect.Cluster, name, letter string, layers ...v1alpha1.ImageLayer) {
	t.Helper()
	member(t, c, name, letter, letter, "linux/amd64", layers...)
}

// member is a manifest for a platform, and of an index unless the digests are the same.
func member(t *testing.T, c *collect.Cluster, name, of, letter, platform string, layers ...v1alpha1.ImageLayer) {
	t.Helper()
	confirmed := metav1.NewTime(heartbeat)
	m := &v1alpha1.ImageManifest{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ManifestName(digestOf(letter))},
		Spec:       v1alpha1.ImageManifestSpec{Digest: digestOf(letter), Platform: platform, Layers: layers},
		Status: v1alpha1.ImageManifestStatus{
			References: []v1alpha1.ImageReference{{Name: name, Digest: digestOf(of), LastConfirmed: &confirmed}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionResolved, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved}},
		},
	}
	for _, l := range layers {
		m.Spec.Size += l.Size
	}
	c.Records = append(c.Records, collect.Record{Name: m.Name, Digest: m.Spec.Digest, Platform: m.Spec.Platform, References: m.Status.References})
	if err := c.Manifests.Add(m); err != nil {
		t.Fatal(err)
	}
}

// cluster has a node of each kind.
func cluster(t *testing.T) *collect.Cluster {
	t.Helper()
	c := &collect.Cluster{Agents: map[string]collect.Agent{}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(), Now: time.Now(), AllNodes: true}
	manifest(t, c, "quay.io/second:1", "2", base, tools, second)
	full := node("full")
	for i := range kubeletLists {
		full.Status.Images = append(full.Status.Images, named(fmt.Sprintf("quay.io/some-%d:1", i)))
	}
	former := node("former")
	former.UID = "made-again"
	c.Nodes = []*v1.Node{
		former, node("agent", named("quay.io/not-counted:1")), node("other-agent"), node("stale", named("quay.io/thing:1")), node("empty"),
		node("joined", named("quay.io/second:1", "quay.io/second@"+digestOf("2"))), full,
	}
	app, other := held{"quay.io/first:1", []v1alpha1.ImageLayer{base, tools, first}}, held{"quay.io/second:1", []v1alpha1.ImageLayer{base, tools, second}}
	agent(c, "agent", c.Now, app, other)
	agent(c, "other-agent", c.Now, app)
	agent(c, "stale", c.Now.Add(-time.Hour), app)
	agent(c, "former", c.Now, app)
	return c
}

func inventory(t *testing.T, c *collect.Cluster) *Inventory {
	t.Helper()
	i, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// What a pod brings that was placed and does not run yet is arriving, also if another pod brings some of it; what the
// node has, and what runs, is not.
func TestArriving(t *testing.T) {
	c := cluster(t)
	pod := func(name, on, image string, phase v1.PodPhase, placed time.Duration) {
		c.Pods = append(c.Pods, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: on, Containers: []v1.Container{{Name: "c", Image: image}}},
			Status: v1.PodStatus{Phase: phase, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, LastTransitionTime: metav1.NewTime(heartbeat.Add(placed))}}},
		})
	}
	pod("later", "other-agent", "quay.io/second:1", v1.PodPending, time.Minute)
	pod("first", "other-agent", "quay.io/second:1", v1.PodPending, 0)
	pod("held", "other-agent", "quay.io/first:1", v1.PodPending, 0)
	pod("running", "other-agent", "quay.io/second:1", v1.PodRunning, 0)
	pod("elsewhere", "agent", "quay.io/second:1", v1.PodPending, 0)
	i := inventory(t, c)
	n, ok := i.Node("other-agent")
	want := []Arriving{{"ns", "first", second.Size, heartbeat}, {"ns", "later", second.Size, heartbeat.Add(time.Minute)}}
	if !ok || !slices.EqualFunc(n.Arriving, want, func(a, b Arriving) bool { return a.Since.Equal(b.Since) && a.Bytes == b.Bytes && a.Pod == b.Pod }) {
		t.Errorf("arriving %+v, want %+v", n.Arriving, want)
	}
	if n, ok := i.Node("agent"); !ok || len(n.Arriving) > 0 {
		t.Errorf("the node has it: %+v", n.Arriving)
	}
}

// Each kind of node differs: where it is from what it holds, how old that is, and what is cut.
func TestNodes(t *testing.T) {
	c := cluster(t)
	found := map[string]Node{}
	var names []string
	for _, n := range inventory(t, c).Nodes() {
		found[n.Name] = n
		names = append(names, n.Name)
	}
	if !slices.IsSorted(names) {
		t.Errorf("%q", names)
	}
	for name, want := range map[string]Node{
		"agent": {
			Images: 2, Layers: 4, TotalImages: 3, TotalLayers: 6, Bytes: 97 * mb, ElsewhereBytes: ptr.To[int64](97 * mb), Source: FromAgent, Reported: c.Now, CutImages: 1, CutLayers: 2,
			Known: map[locality.Provenance]int{locality.FromLayers: 2},
		},
		"other-agent": {
			Images: 1, Layers: 3, TotalImages: 2, TotalLayers: 5, Bytes: 92 * mb, ElsewhereBytes: ptr.To[int64](92 * mb), Source: FromAgent, Reported: c.Now, CutImages: 1, CutLayers: 2,
			Known: map[locality.Provenance]int{locality.FromLayers: 1},
		},
		"joined": {
			Images: 1, Layers: 3, Bytes: 95 * mb, ElsewhereBytes: ptr.To[int64](95 * mb), Source: Joined, Reported: heartbeat,
			Known: map[locality.Provenance]int{locality.FromManifest: 1},
		},
		"empty": {ElsewhereBytes: ptr.To[int64](0), Source: FromNothing, Reported: heartbeat, Known: map[locality.Provenance]int{}},
	} {
		got := found[name]
		known := maps.Clone(got.Known)
		maps.DeleteFunc(known, func(_ locality.Provenance, n int) bool { return n == 0 })
		if !maps.Equal(known, want.Known) || !got.Reported.Equal(want.Reported) || got.Runtime != "cri-o://1.36.3" || got.Reuse != v1alpha1.ReuseByDigest {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if ptr.Deref(got.ElsewhereBytes, -1) != *want.ElsewhereBytes {
			t.Errorf("%s: %v bytes elsewhere, want %d", name, got.ElsewhereBytes, *want.ElsewhereBytes)
		}
		for _, n := range []*Node{&got, &want} {
			n.Name, n.ElsewhereBytes, n.Known, n.Reported, n.Runtime, n.Reuse = "", nil, nil, time.Time{}, "", ""
		}
		if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
			t.Errorf("%s: %s, want %s", name, a, b)
		}
	}
	// Of a stale agent, the names that the node has count.
	if n := found["stale"]; n.Source != FromNames || !n.StaleAgent || !n.Reported.Equal(heartbeat) || n.Images != 1 || n.CutImages != 0 {
		t.Errorf("%+v", n)
	}
	if n := found["former"]; n.Source != FromNothing || n.StaleAgent || n.Problem != "it is of a Node that had this name before" {
		t.Errorf("%+v", n)
	}
	if n := found["full"]; n.Source != FromNames || !n.FullList || n.StaleAgent || n.Images != kubeletLists {
		t.Errorf("%+v", n)
	}
}

// Where one node was read, nothing is said of others; and whether that is all there is to say.
func TestAlone(t *testing.T) {
	c := cluster(t)
	c.AllNodes = false
	i := inventory(t, c)
	for _, n := range i.Nodes() {
		if n.ElsewhereBytes != nil {
			t.Errorf("%s: %d bytes elsewhere", n.Name, *n.ElsewhereBytes)
		}
	}
	for name, want := range map[string]bool{"agent": true, "joined": true, "empty": true, "stale": false, "full": false} {
		if got := i.Alone(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The images of a node: the largest first, with what would go with each.
func TestNode(t *testing.T) {
	i := inventory(t, cluster(t))
	n, ok := i.Node("agent")
	if !ok || n.Source != FromAgent || len(n.Held) != 2 {
		t.Fatalf("%+v, %t", n, ok)
	}
	for at, want := range []struct {
		name                 string
		bytes, shared, freed int64
	}{{"quay.io/second:1", 95 * mb, 90 * mb, 5 * mb}, {"quay.io/first:1", 92 * mb, 90 * mb, 2 * mb}} {
		h := n.Held[at]
		if h.Names[0] != want.name || h.Bytes != want.bytes || h.SharedBytes != want.shared || h.FreedBytes != want.freed || h.Layers != 3 || h.Known != locality.FromLayers {
			t.Errorf("%+v, want %+v", h, want)
		}
	}
	if n, ok := i.Node("empty"); !ok || n.Held == nil || len(n.Held) > 0 {
		t.Errorf("%+v, %t", n, ok)
	}
	if _, ok := i.Node("none"); ok {
		t.Error("a node that was not read")
	}
}

// What goes from a node with several images: a base that only they have goes once, what another
// one has stays.
func TestFreed(t *testing.T) {
	c := cluster(t)
	agent(c, "empty", c.Now, held{"quay.io/first:1", []v1alpha1.ImageLayer{base, tools, first}}, held{"quay.io/second:1", []v1alpha1.ImageLayer{base, tools, second}}, held{"quay.io/tools:1", []v1alpha1.ImageLayer{tools}})
	i := inventory(t, c)
	for _, test := range []struct {
		references string
		bytes      int64
		ok         bool
	}{
		{"quay.io/first:1", 2 * mb, true},
		{"quay.io/first:1 quay.io/second:1", 67 * mb, true},
		{"quay.io/first:1 quay.io/second:1 quay.io/tools:1", 97 * mb, true},
		{"quay.io/first:1 quay.io/first:1", 2 * mb, true},
		{"quay.io/first:1 quay.io/nobody:1", 0, false},
		{"not\tvalid", 0, false},
		{"", 0, true},
	} {
		if bytes, ok := i.Freed("empty", strings.Fields(test.references)); ok != test.ok || ok && bytes != test.bytes {
			t.Errorf("%s: %d, %t, want %d, %t", test.references, bytes, ok, test.bytes, test.ok)
		}
	}
	if _, ok := i.Freed("nowhere", []string{"quay.io/first:1"}); ok {
		t.Error("a node that was not read")
	}
}

// What an image consists of, where that is from, and where its layers are.
func TestImages(t *testing.T) {
	i := inventory(t, cluster(t))
	images := i.Images([]string{"quay.io/second:1", "quay.io/first:1", "quay.io/thing:1", "quay.io/nobody:1", "not valid\x1b[2J"})
	if len(images) != 5 {
		t.Fatalf("%+v", images)
	}
	resolved := images[0]
	if len(resolved.Variants) != 1 || len(resolved.Objects) != 1 || resolved.Nodes[locality.FromLayers] != 1 || resolved.Nodes[locality.FromManifest] != 1 {
		t.Fatalf("%+v", resolved)
	}
	if v := resolved.Variants[0]; v.From != "ImageManifest" || v.Platform != "linux/amd64" || v.Bytes != 95*mb || len(v.Layers) != 3 || v.Layers[0] != (Layer{base.Digest, base.Size, 3}) {
		t.Errorf("the base comes first: %+v", v)
	}
	if o := resolved.Objects[0]; o.Digest != digestOf("2") || !o.Confirmed.Equal(heartbeat) || o.Private || o.Reason != "" {
		t.Errorf("%+v", o)
	}
	if v := images[1].Variants; len(v) != 1 || v[0].From != "nodes" || v[0].Bytes != 92*mb || len(images[1].Objects) > 0 || images[1].Nodes[locality.FromLayers] != 2 {
		t.Errorf("%+v", images[1])
	}
	for _, image := range images[2:] {
		if len(image.Variants) > 0 || len(image.Objects) > 0 || strings.Contains(image.Image, "\x1b") {
			t.Errorf("%+v", image)
		}
	}
	if len(images[4].Names) > 0 || len(images[2].Names) == 0 {
		t.Errorf("%q, %q", images[4].Names, images[2].Names)
	}
	// A node names the third one; nothing names the last two.
	for at, want := range []bool{false, false, false, true, true} {
		if got := images[at].Unknown(); got != want {
			t.Errorf("%+v is unknown: %t", images[at], got)
		}
	}
	// Nothing is null in JSON.
	text, err := json.Marshal(images)
	if err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%v, %s", err, text)
	}
}

// What registries, tenants and nodes say is cleaned and bounded.
func TestUntrusted(t *testing.T) {
	hostile := "\x1b[2J\u202E" + strings.Repeat("x", 1<<20)
	c := cluster(t)
	c.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = hostile
	c.Agents["empty"] = collect.Agent{Problem: hostile, Invalid: 7}
	c.Records = append(c.Records, collect.Record{
		Name: "unresolved", Digest: hostile, Platform: hostile, Reason: hostile, Message: hostile,
		References: []v1alpha1.ImageReference{{Name: hostile}, {Name: "quay.io/nobody:1", Private: true}},
	})
	i := inventory(t, c)
	images := i.Images([]string{"quay.io/nobody:1", hostile})
	if o := images[0].Objects; len(o) != 1 || !o[0].Private || o[0].Name != "unresolved" || images[0].Unknown() {
		t.Errorf("%.2000v", o)
	}
	for what, answer := range map[string]any{"nodes": i.Nodes(), "images": images, "shared": i.Shared(), "common": i.Common([]string{hostile, "quay.io/first:1"})} {
		text := fmt.Sprintf("%+v", answer)
		if strings.ContainsAny(text, "\x1b\u202E") || strings.Contains(text, strings.Repeat("x", maxShown+1)) {
			t.Errorf("%s: %.500s", what, text)
		}
	}
	for _, n := range i.Nodes() {
		if n.Name == "empty" && (n.InvalidLines != 7 || n.StaleAgent || len(n.Problem) == 0) {
			t.Errorf("%+v", n)
		}
	}
}

// What images have in common is what they do not take twice.
func TestShared(t *testing.T) {
	i := inventory(t, cluster(t))
	shared := i.Shared()
	if len(shared.Layers) != 2 || len(shared.Bases) != 1 {
		t.Fatalf("%+v", shared)
	}
	if got := shared.Layers[0]; got != (SharedLayer{Digest: base.Digest, Bytes: 60 * mb, SavedBytes: 60 * mb, Images: 2, Nodes: 3}) {
		t.Errorf("%+v", got)
	}
	b := shared.Bases[0]
	slices.Sort(b.Digests)
	if !slices.Equal(b.Digests, []string{base.Digest, tools.Digest}) || b.Bytes != 90*mb || b.SavedBytes != 90*mb || b.Images != 2 || b.Nodes != 3 || len(b.Names) != 2 {
		t.Errorf("%+v", b)
	}
	m := i.Common([]string{"quay.io/first:1", "quay.io/second:1", "quay.io/nobody:1"})
	if fmt.Sprint(m.Known) != "[true true false]" || fmt.Sprint(m.CommonBytes) != fmt.Sprint([][]int64{{92 * mb, 90 * mb, 0}, {90 * mb, 95 * mb, 0}, {0, 0, 0}}) {
		t.Errorf("%+v", m)
	}
}

// Images for several platforms are compared on the same one, in whichever order these are found.
func TestCommonPlatform(t *testing.T) {
	c := &collect.Cluster{Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic()}
	member(t, c, "quay.io/a:1", "a", "1", "linux/amd64", base, first)
	member(t, c, "quay.io/a:1", "a", "4", "linux/arm64", tools)
	member(t, c, "quay.io/b:1", "b", "3", "linux/amd64", base, base, second)
	member(t, c, "quay.io/b:1", "b", "2", "linux/arm64", second)
	manifest(t, c, "quay.io/c:1", "5", base)
	member(t, c, "quay.io/d:1", "6", "6", "linux/arm64", base)
	m := inventory(t, c).Common([]string{"quay.io/a:1", "quay.io/b:1", "quay.io/c:1", "quay.io/d:1"})
	want := [][]int64{{62 * mb, 60 * mb, 60 * mb, 0}, {60 * mb, 65 * mb, 60 * mb, 0}, {60 * mb, 60 * mb, 60 * mb, 0}, {0, 0, 0, 60 * mb}}
	if fmt.Sprint(m.CommonBytes) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", m.CommonBytes, want)
	}
}

// A cluster about which nothing is known has answers without entries.
func TestNothing(t *testing.T) {
	i := inventory(t, &collect.Cluster{Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic()})
	text, err := json.Marshal([]any{i.Nodes(), i.Images(nil), i.Shared(), i.Common(nil)})
	if want := `[[],[],{"layers":[],"bases":[]},{"images":[],"known":[],"commonBytes":[]}]`; err != nil || string(text) != want {
		t.Errorf("%v, %s, want %s", err, text, want)
	}
}

// FuzzShown: whatever a name is, what is shown of it is short and no command for a terminal.
func FuzzShown(f *testing.F) {
	f.Add("quay.io/a:1", "message \x1b[2J", "linux/amd64")
	f.Add("a@sha256:0", "\u202E\n", "")
	f.Fuzz(func(t *testing.T, name, message, platform string) {
		c := &collect.Cluster{
			Agents: map[string]collect.Agent{"n": {Problem: message}}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(),
			Nodes:   []*v1.Node{node("n", named(name, message))},
			Records: []collect.Record{{Digest: name, Message: message, Platform: platform, References: []v1alpha1.ImageReference{{Name: name}}}},
		}
		i, err := New(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := i.Node("n")
		texts := []string{all.Problem}
		for _, h := range all.Held {
			texts = append(texts, h.Names...)
		}
		for _, image := range i.Images([]string{name}) {
			texts = append(append(texts, image.Image), image.Names...)
			for _, o := range image.Objects {
				texts = append(texts, o.Digest, o.Message, o.Platform)
			}
		}
		for _, text := range texts {
			if len([]rune(text)) > maxShown || strings.ContainsAny(text, "\x1b\n\u202E") {
				t.Errorf("%q", text)
			}
		}
	})
}

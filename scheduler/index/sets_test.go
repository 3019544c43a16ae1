package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// A set has the nodes that were added and not removed, as a list and as a bitmap.
func TestNodeSet(t *testing.T) {
	const nodes = 500
	r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a test that can be repeated
	var s nodeSet
	expected := map[Slot]bool{}
	lists, bitmaps := 0, 0
	// It grows to most of the nodes and shrinks to none, several times.
	for step := range 20000 {
		e := Slot(r.IntN(nodes)) //nolint:gosec // small
		if adding := step/2500%2 == 0; adding {
			s.add(e, nodes)
			expected[e] = true
		} else {
			s.remove(e, nodes)
			delete(expected, e)
		}
		if s.bits == nil {
			lists++
		} else {
			bitmaps++
		}
		all := slices.Collect(s.all())
		if len(all) != len(expected) || s.n != len(expected) || !slices.IsSorted(all) {
			t.Fatalf("step %d: %d nodes, n is %d, want %d", step, len(all), s.n, len(expected))
		}
		for _, e := range all {
			if !expected[e] || !s.has(e) {
				t.Fatalf("step %d: %d was removed", step, e)
			}
		}
	}
	if lists < 1000 || bitmaps < 1000 {
		t.Errorf("%d times a list, %d times a bitmap", lists, bitmaps)
	}
	for e := range s.all() {
		if e != slices.Collect(s.all())[0] {
			t.Error("goes on after the first")
		}
		break
	}
}

// Any number of nodes has an image, on one platform or in turn on two.
func TestAnyNumberOfNodes(t *testing.T) {
	for _, platforms := range [][]Platform{{amd64}, {amd64, arm64}} {
		x := New()
		var nodes []string
		for n := range 200 {
			node := fmt.Sprintf("n%03d", n)
			nodes = append(nodes, node)
			x.SetNode(node, platforms[n%len(platforms)])
			x.SetImages("s", node, []Image{image("ab", "docker.io/library/one:1")})
			if got := slices.Sorted(slices.Values(x.NodesWith(want("one:1")[0].Names))); !slices.Equal(got, nodes) {
				t.Errorf("of %d nodes that have it: %q", len(nodes), got)
			}
			m := measured(x, want("one:1"))
			for _, node := range nodes {
				if bytes, _ := m.Node(node); bytes != (NodeBytes{Total: sum("ab"), Present: sum("ab")}) {
					t.Errorf("%s of %d nodes: %+v", node, len(nodes), bytes)
				}
			}
		}
	}
}

// A cluster that replaces its nodes for ever needs no more memory.
func TestReplacedNodes(t *testing.T) {
	x := newIndex("stays")
	for range 10 {
		x.SetNode("replaced", arm64)
		x.SetImages("s", "replaced", []Image{image("ab", "docker.io/library/one:1")})
		x.DeleteNode("replaced")
		if len(x.groups) != 1 {
			t.Errorf("groups %v, want that of the only node", x.groups)
		}
	}
	if len(x.slots) != 2 || len(x.pending) != 2 {
		t.Errorf("%d slots for two nodes", len(x.slots))
	}
}

// Of two images that are expected by name, the one that is not there yet stays expected.
func TestOneOfTwoExpectedNamesReported(t *testing.T) {
	x := newIndex("n1", "n2")
	x.Reserve("p", "n1", want("one:1", "two:1"), joining, t0, t0.Add(time.Hour))
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1")})
	if x.Stats().Reservations != 1 || !measured(x, want("two:1")).has(t, "n1") {
		t.Errorf("two:1 is not expected any more: %+v", x.Stats())
	}
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1"), image("c", "docker.io/library/two:1")})
	if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
		t.Errorf("left: %+v", s)
	}
}

// has reports whether bytes arrive at the node.
func (m *Measurement) has(t *testing.T, node string) bool {
	t.Helper()
	bytes, ok := m.Node(node)
	return ok && bytes.Arriving > 0
}

// Two images of a node have one name: the first has it, and the second is known by its
// others.
func TestNameOfTwoImages(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{
		image("ab", "docker.io/library/one:1"),
		image("cd", "docker.io/library/one:1", "quay.io/other:1", "quay.io/other@"+digest("other")),
	})
	for name, layers := range map[string]string{"one:1": "ab", "quay.io/other:1": "cd", "quay.io/other@" + digest("other"): "cd"} {
		check(t, x, want(name), map[string]NodeBytes{
			"n1": {Total: sum(layers), Present: sum(layers)}, "n2": {Total: sum(layers)},
		})
	}
}

// CRI-O downloads a layer for each image that needs it: what comes for one image is of
// no use to another until it is there, and the link has to pull it twice.
func TestDownloadsAreNotJoined(t *testing.T) {
	apart := joining
	apart.JoinsDownloads = false
	later := t0.Add(time.Hour)
	setup := func() *Index {
		x := newIndex("n1", "n2", "known")
		x.SetImages("s", "known", []Image{image("ab", "docker.io/library/one:1"), image("ac", "docker.io/library/two:1")})
		if got := x.Reserve("p", "n1", want("one:1"), apart, t0, later); got != sum("ab") {
			t.Errorf("the first pod brings %d", got)
		}
		return x
	}
	expect := func(x *Index, what, name string, rules Rules, expected NodeBytes) {
		t.Helper()
		m := &Measurement{}
		x.Measure(want(name), rules, t0, m)
		if got, _ := m.Node("n1"); got != expected {
			t.Errorf("%s: %+v, want %+v", what, got, expected)
		}
	}
	x := setup()
	expect(x, "the same image", "one:1", apart, NodeBytes{Total: sum("ab"), Arriving: sum("ab"), Pending: sum("ab")})
	expect(x, "another image", "two:1", apart, NodeBytes{Total: sum("ac"), Pending: sum("ab")})
	expect(x, "another image, joined", "two:1", joining, NodeBytes{Total: sum("ac"), Arriving: sum("a"), Pending: sum("ab")})
	if got := x.Reserve("q", "n1", want("two:1"), apart, t0, later); got != sum("ac") {
		t.Errorf("the second image brings %d, want all of it", got)
	}
	if got := x.Reserve("r", "n1", want("one:1"), apart, t0, later); got != 0 {
		t.Errorf("a second pod with the first image brings %d", got)
	}
	expect(x, "both", "two:1", apart, NodeBytes{Total: sum("ac"), Arriving: sum("ac"), Pending: sum("ab") + sum("ac")})
	checkInvariants(t, x)
	// The first pod runs: its layers are there for everybody, and the second image is
	// still on its way.
	x.started("p", later)
	expect(x, "the first image is there", "two:1", apart, NodeBytes{Total: sum("ac"), Present: sum("a"), Arriving: sum("c"), Pending: sum("ac")})
	if got := x.Reserve("s", "n1", want("one:1", "two:1"), apart, t0, later); got != 0 {
		t.Errorf("a pod with both brings %d", got)
	}
	checkInvariants(t, x)
	x.Release("q")
	x.Release("r")
	x.Release("s")
	expect(x, "only the pod that runs", "two:1", apart, NodeBytes{Total: sum("ac"), Present: sum("a")})
	// A pull that begins once the layer is there does not repeat it.
	if got := x.Reserve("t", "n1", want("two:1"), apart, t0, later); got != sum("c") {
		t.Errorf("the second image brings %d, want what the first did not", got)
	}
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1"), image("ac", "docker.io/library/two:1")})
	if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
		t.Errorf("left: %+v", s)
	}

	// Where downloads are joined, the second image costs what it has of its own.
	x = newIndex("n1", "known")
	x.SetImages("s", "known", []Image{image("ab", "docker.io/library/one:1"), image("ac", "docker.io/library/two:1")})
	x.Reserve("p", "n1", want("one:1"), joining, t0, later)
	if got := x.Reserve("q", "n1", want("two:1"), joining, t0, later); got != sum("c") {
		t.Errorf("joined: the second image brings %d", got)
	}
	x.Release("p")
	expect(x, "joined, the first pod is gone", "two:1", joining, NodeBytes{Total: sum("ac"), Arriving: sum("ac"), Pending: sum("ac")})
	checkInvariants(t, x)
}

// Whether downloads are joined is set for a node; the rules are for those without.
func TestNodesStateWhetherTheyJoin(t *testing.T) {
	apart := joining
	apart.JoinsDownloads = false
	x := newIndex("joins", "apart", "silent", "known")
	x.SetImages("s", "known", []Image{image("ab", "docker.io/library/one:1"), image("ac", "docker.io/library/two:1")})
	x.SetJoins("joins", ptr.To(true))
	x.SetJoins("apart", ptr.To(false))
	x.SetJoins("stranger", ptr.To(true))
	x.SetNode("joins", amd64) // nothing new
	for _, node := range []string{"joins", "apart", "silent"} {
		x.Reserve(types.UID(node), node, want("one:1"), apart, t0, t0.Add(time.Hour))
	}
	expect := func(rules Rules, arriving map[string]string) {
		t.Helper()
		m := &Measurement{}
		x.Measure(want("two:1"), rules, t0, m)
		for node, layers := range arriving {
			expected := NodeBytes{Total: sum("ac"), Arriving: sum(layers), Pending: sum("ab")}
			if got, _ := m.Node(node); got != expected {
				t.Errorf("%s, joined if it has no value %t: %+v, want %+v", node, rules.JoinsDownloads, got, expected)
			}
		}
	}
	expect(apart, map[string]string{"joins": "a", "apart": "", "silent": ""})
	expect(joining, map[string]string{"joins": "a", "apart": "", "silent": "a"})
	for _, node := range []string{"joins", "apart", "silent"} {
		missing := map[string]int64{"joins": sum("c"), "apart": sum("ac"), "silent": sum("ac")}[node]
		if got := x.Reserve(types.UID("second on "+node), node, want("two:1"), apart, t0, t0.Add(time.Hour)); got != missing {
			t.Errorf("%s has to pull %d for the second image, want %d", node, got, missing)
		}
		x.Release(types.UID("second on " + node))
	}
	checkInvariants(t, x)

	// A node may join or not later, or come back as another one.
	x.SetJoins("apart", nil)
	x.SetJoins("silent", ptr.To(true))
	expect(apart, map[string]string{"joins": "a", "apart": "", "silent": "a"})
	expect(joining, map[string]string{"joins": "a", "apart": "a", "silent": "a"})
	x.DeleteNode("silent")
	x.SetNode("silent", amd64)
	x.Reserve("again", "silent", want("one:1"), apart, t0, t0.Add(time.Hour))
	expect(apart, map[string]string{"silent": ""})
}

// The memory of a Measurement is used again: what it held before does not show.
func TestMeasurementUsedAgain(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1")})
	x.Reserve("p", "n2", want("one:1"), joining, t0, t0.Add(time.Hour))
	again := &Measurement{}
	for _, name := range []string{"one:1", "new:1", "one:1"} {
		x.Measure(want(name), joining, t0, again)
		fresh := measured(x, want(name))
		for _, node := range []string{"n1", "n2"} {
			a, _ := again.Node(node)
			b, _ := fresh.Node(node)
			if a != b || !slices.Equal(again.Images, fresh.Images) || again.Empty() != fresh.Empty() {
				t.Errorf("%s on %s: %+v %v, fresh %+v %v", name, node, a, again.Images, b, fresh.Images)
			}
		}
	}
}

// A pod that started keeps its layers present until the deadline of its report, not until
// that of its arrival.
func TestDeadlineOfStarted(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n2", []Image{image("ab", "docker.io/library/one:1")})
	x.Reserve("p", "n1", want("one:1"), joining, t0, t0.Add(time.Hour))
	x.started("p", t0.Add(time.Minute))
	for _, test := range []struct {
		after   time.Duration
		present int64
	}{{time.Minute - time.Nanosecond, sum("ab")}, {time.Minute, 0}} {
		m := &Measurement{}
		x.Measure(want("one:1"), joining, t0.Add(test.after), m)
		if got, _ := m.Node("n1"); got.Present != test.present {
			t.Errorf("after %s: %+v, want %d present", test.after, got, test.present)
		}
	}
}

// A pod of an unknown image was placed, and then its manifest comes: the link has to pull
// what the image has, and not what unknown images are taken to have.
func TestResolveReservations(t *testing.T) {
	for _, started := range []bool{false, true} {
		x := newIndex("n1", "n2")
		x.SetNode("arm", arm64)
		for _, node := range []string{"n1", "arm"} {
			x.Reserve(types.UID("p-"+node), node, want("one:1", "two:1"), joining, t0, t0.Add(time.Hour))
		}
		x.Reserve("q", "n1", want("one:1"), joining, t0, t0.Add(time.Minute))
		if started {
			x.started("q", t0.Add(time.Minute))
		}
		wanted := want("one:1")
		wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: image("ab").Layers}}
		m := measured(x, wanted)
		if !m.Outdated() {
			t.Fatal("the manifest is not news")
		}
		x.ResolveReservations([]Wanted{{}, want("never-heard-of:1")[0], wanted[0]}, joining)
		checkInvariants(t, x)
		m = measured(x, wanted)
		if m.Outdated() {
			t.Error("still outdated")
		}
		expected := NodeBytes{Total: sum("ab"), Arriving: sum("ab"), Pending: sum("ab") + joining.UnknownBytes} // and two:1
		if started {
			expected = NodeBytes{Total: sum("ab"), Present: sum("ab"), Pending: joining.UnknownBytes}
		}
		if got, _ := m.Node("n1"); got != expected {
			t.Errorf("started %t: %+v, want %+v", started, got, expected)
		}
		if got, _ := m.Node("arm"); got.Pending != 2*joining.UnknownBytes {
			t.Errorf("on a platform without manifest: %+v", got)
		}
		// Nothing else changes: both still end as they would have.
		x.Measure(wanted, joining, t0.Add(2*time.Minute), m)
		x.Release("p-n1")
		x.Release("p-arm")
		if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
			t.Errorf("started %t: left %+v", started, s)
		}
	}
}

// Several images of a pod become known at once.
func TestResolveReservationsOfSeveral(t *testing.T) {
	x := newIndex("n1")
	x.Reserve("p", "n1", want("one:1", "two:1", "three:1"), joining, t0, t0.Add(time.Hour))
	wanted := want("one:1", "two:1")
	wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: image("ab").Layers}}
	wanted[1].Manifests = []Manifest{{Platform: amd64, Layers: image("bc").Layers}}
	x.ResolveReservations(wanted, joining)
	checkInvariants(t, x)
	check(t, x, wanted, map[string]NodeBytes{"n1": {Total: sum("abc"), Arriving: sum("abc"), Pending: sum("abc") + joining.UnknownBytes}})
	if measured(x, wanted).Outdated() {
		t.Error("still outdated")
	}
}

// Nodes report an image by its name only, as stock CRI-O's do, and call it by its digest. A pod
// that was placed before its layers became known still brings them.
func TestResolveReservationsOfReportedNames(t *testing.T) {
	byName := Image{Names: []string{"docker.io/library/one:1", "docker.io/library/one@" + digest("one")}, SizeBytes: 500}
	for _, compressed := range []bool{false, true} {
		for _, name := range []string{"one:1", "one@" + digest("one")} {
			byName.Compressed = compressed
			x := newIndex("n1", "n2")
			x.SetImages("s", "n2", []Image{byName})
			wanted := want(name)
			if got := x.Reserve("p", "n1", wanted, joining, t0, t0.Add(time.Hour)); got != 500 {
				t.Errorf("%s: %d bytes to pull", name, got)
			}
			check(t, x, wanted, map[string]NodeBytes{"n1": {Total: 500, Arriving: 500, Pending: 500}, "n2": {Total: 500, Present: 500}})
			// By whatever name it is called, and once.
			for _, other := range []string{"one:1", "one@" + digest("one")} {
				check(t, x, want(other), map[string]NodeBytes{"n1": {Total: 500, Arriving: 500, Pending: 500}})
			}
			wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: image("ab").Layers}}
			if !measured(x, wanted).Outdated() {
				t.Fatalf("%s: the manifest is not news", name)
			}
			if got := x.Reserve("q", "n1", want("one@"+digest("one")), joining, t0, t0.Add(time.Hour)); got != 0 {
				t.Errorf("%s: %d bytes more for the same image", name, got)
			}
			x.Release("q")
			x.ResolveReservations(wanted, joining)
			checkInvariants(t, x)
			check(t, x, wanted, map[string]NodeBytes{"n1": {Total: sum("ab"), Arriving: sum("ab"), Pending: sum("ab")}, "n2": {Total: sum("ab"), Present: sum("ab")}})
			// A pod that was placed before that ends waiting as well, once the node reports layers.
			x.Reserve("r", "n1", want(name), joining, t0, t0.Add(time.Hour))
			x.SetImages("s", "n1", []Image{image("ab", byName.Names...)})
			if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
				t.Errorf("%s: left %+v", name, s)
			}
		}
	}
}

// A pod that started waits no more: the next pod may wait in its place.
func TestWaitingEndsWithTheStart(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n2", []Image{image("ab", "docker.io/library/one:1"), image("ac", "docker.io/library/two:1")})
	one := Rules{MaxWaiting: 1, UnknownBytes: 100, JoinsDownloads: true}
	x.Reserve("p", "n1", want("one:1"), one, t0, t0.Add(time.Hour))
	x.Reserve("q", "n1", want("two:1"), one, t0, t0.Add(time.Hour))
	crowded := func(name string) int64 {
		m := &Measurement{}
		x.Measure(want(name), one, t0, m)
		got, _ := m.Node("n1")
		return got.Crowded
	}
	if got := crowded("two:1"); got != sum("ac") {
		t.Errorf("%d bytes are crowded, want all", got)
	}
	x.started("p", t0.Add(time.Hour))
	x.Release("q")
	if got := crowded("two:1"); got != 0 {
		t.Errorf("%d bytes are crowded after the pods started or went", got)
	}
	checkInvariants(t, x)
}

// A report that repeats itself counts once.
func TestRepeatedReport(t *testing.T) {
	x := newIndex("n1", "n2")
	twice := image("aab", "docker.io/library/one:1")
	nameless := image("cd")
	x.SetImages("s", "n1", []Image{twice, nameless, nameless})
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: sum("ab"), Present: sum("ab")}, "n2": {Total: sum("ab")}})
	checkInvariants(t, x)
	x.SetImages("s", "n1", []Image{nameless})
	checkInvariants(t, x)
	x.SetImages("s", "n1", nil)
	if s := x.Stats(); s.Images != 0 || s.Layers != 0 {
		t.Errorf("left: %+v", s)
	}
}

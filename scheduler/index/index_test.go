package index

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/imageref"
)

var (
	amd64 = Platform{"linux", "amd64"}
	arm64 = Platform{"linux", "arm64"}
	t0    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

	joining = Rules{MaxWaiting: 10, UnknownBytes: 100, JoinsDownloads: true}
)

func digest(s string) string { return fmt.Sprintf("sha256:%064x", s) }

// image makes an image. Its layers are letters; a layer has 10 bytes times its place
// in the alphabet, so that every set has its own sum.
func image(layers string, names ...string) Image {
	img := Image{Names: names, SizeBytes: 1000}
	for _, l := range layers {
		img.Layers = append(img.Layers, Layer{Digest: digest(string(l)), Size: size(l)})
	}
	return img
}

func size(letter rune) int64 { return 10 << (letter - 'a') }

func sum(layers string) (n int64) {
	for _, l := range layers {
		n += size(l)
	}
	return n
}

func want(names ...string) []Wanted {
	var wanted []Wanted
	for _, s := range names {
		canonical, err := imageref.Parse(s)
		if err != nil {
			panic(err)
		}
		wanted = append(wanted, Wanted{Names: []imageref.Canonical{canonical}})
	}
	return wanted
}

func newIndex(nodes ...string) *Index {
	x := New()
	for _, n := range nodes {
		x.SetNode(n, amd64)
	}
	return x
}

func measured(x *Index, wanted []Wanted) *Measurement {
	w := &Measurement{}
	x.Measure(wanted, joining, t0, w)
	return w
}

func check(t *testing.T, x *Index, wanted []Wanted, expected map[string]NodeBytes) {
	t.Helper()
	w := measured(x, wanted)
	for node, e := range expected {
		if got, ok := w.Node(node); !ok || got != e {
			t.Errorf("%s: %+v (known %t), want %+v", node, got, ok, e)
		}
	}
}

func TestPresent(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	x.SetImages("s", "n1", []Image{image("abc", "docker.io/library/one:1", "docker.io/library/one@"+digest("one"))})
	x.SetImages("s", "n2", []Image{image("abd", "quay.io/two:latest")})

	check(t, x, want("one:1"), map[string]NodeBytes{
		"n1": {Total: sum("abc"), Present: sum("abc")}, "n2": {Total: sum("abc"), Present: sum("ab")}, "n3": {Total: sum("abc")},
	})
	check(t, x, want("mirror.example.com/x@"+digest("one")), map[string]NodeBytes{
		"n1": {Total: sum("abc"), Present: sum("abc")}, "n2": {Total: sum("abc"), Present: sum("ab")},
	})
	// The union: layers that two images share count once.
	check(t, x, want("one:1", "quay.io/two"), map[string]NodeBytes{
		"n1": {Total: sum("abcd"), Present: sum("abc")}, "n2": {Total: sum("abcd"), Present: sum("abd")}, "n3": {Total: sum("abcd")},
	})
	// An unknown image adds nothing.
	w := measured(x, want("one:1", "unknown"))
	if !slices.Equal(w.Images, []Known{ByLayers, Unknown}) || w.MeanTotal() != float64(sum("abc")) {
		t.Errorf("known %v, mean %f", w.Images, w.MeanTotal())
	}
	if w := measured(x, want("unknown")); !w.Empty() || w.MeanTotal() != 0 {
		t.Errorf("an unknown image weighs %+v", w)
	}
	if w := measured(New(), want("one:1")); !w.Empty() || !slices.Equal(w.Images, []Known{Unknown}) {
		t.Errorf("without nodes: %+v", w)
	}
}

func TestChanges(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	one := image("abc", "docker.io/library/one:1")
	x.SetImages("s", "n1", []Image{one, image("ad", "docker.io/library/other:1")})
	x.SetImages("s", "n2", []Image{one})

	t.Run("image removed, a layer stays for another", func(t *testing.T) {
		x.SetImages("s", "n1", []Image{image("ad", "docker.io/library/other:1")})
		check(t, x, want("one:1"), map[string]NodeBytes{
			"n1": {Total: sum("abc"), Present: sum("a")}, "n2": {Total: sum("abc"), Present: sum("abc")},
		})
	})
	t.Run("node deleted", func(t *testing.T) {
		x.DeleteNode("n1")
		x.DeleteNode("n1")
		w := measured(x, want("one:1"))
		if _, ok := w.Node("n1"); ok {
			t.Error("a deleted node is known")
		}
		if w := measured(x, want("other:1")); w.Images[0] != Unknown {
			t.Errorf("an image of a deleted node is known by %s", w.Images[0])
		}
	})
	t.Run("node created again, another takes its place", func(t *testing.T) {
		x.SetNode("n4", amd64)
		x.SetNode("n1", amd64)
		check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: sum("abc")}, "n4": {Total: sum("abc")}})
	})
	t.Run("tag moved", func(t *testing.T) {
		x.SetImages("s", "n1", []Image{image("abe", "docker.io/library/one:1")})
		x.SetImages("s", "n2", []Image{image("abc", "docker.io/library/one@"+digest("old")), image("abe", "docker.io/library/one:1")})
		check(t, x, want("one:1"), map[string]NodeBytes{
			"n1": {Total: sum("abe"), Present: sum("abe")}, "n2": {Total: sum("abe"), Present: sum("abe")}, "n3": {Total: sum("abe")},
		})
	})
	t.Run("all gone", func(t *testing.T) {
		for _, n := range []string{"n1", "n2", "n3", "n4"} {
			x.DeleteNode(n)
		}
		if s := x.Stats(); s != (Stats{}) {
			t.Errorf("left: %+v", s)
		}
	})
}

func TestNodesDisagreeOnTag(t *testing.T) {
	x := newIndex("n1", "n2", "n3", "n4")
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1")})
	x.SetImages("s", "n2", []Image{image("ab", "docker.io/library/one:1")})
	x.SetImages("s", "n3", []Image{image("ac", "docker.io/library/one:1")})

	// The majority decides what the image is. n3 has it all the same: its kubelet
	// uses what has the name.
	total := sum("ab")
	check(t, x, want("one:1"), map[string]NodeBytes{
		"n1": {Total: total, Present: total}, "n2": {Total: total, Present: total},
		"n3": {Total: total, Present: total}, "n4": {Total: total},
	})
	// This is not so if the kubelet asks the registry every time.
	always := want("one:1")
	always[0].PullAlways = true
	check(t, x, always, map[string]NodeBytes{"n1": {Total: total, Present: total}, "n3": {Total: total, Present: sum("a")}})

	// In a tie the smaller digests win, whichever came first.
	x.SetImages("s", "n4", []Image{image("ac", "docker.io/library/one:1")})
	check(t, x, always, map[string]NodeBytes{"n1": {Total: total, Present: total}, "n4": {Total: total, Present: sum("a")}})
}

func TestReportedSizes(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	vote := func(node, name string, size int64) { // three distinct images
		x.SetImages("s", node, []Image{{Names: []string{name}, SizeBytes: int64(node[1]), Layers: []Layer{{digest("x"), size}}}})
	}
	vote("n1", "docker.io/library/a:1", 700)
	vote("n2", "docker.io/library/b:1", 300)
	check(t, x, want("a:1"), map[string]NodeBytes{"n1": {Total: 300, Present: 300}}) // a tie: the smaller one
	vote("n3", "docker.io/library/c:1", 700)
	check(t, x, want("a:1"), map[string]NodeBytes{"n1": {Total: 700, Present: 700}}) // the majority
	vote("n3", "docker.io/library/c:1", -5)
	vote("n2", "docker.io/library/b:1", -7)
	check(t, x, want("a:1"), map[string]NodeBytes{"n1": {Total: 0, Present: 0}}) // negative ones count as 0
	x.DeleteNode("n2")
	x.DeleteNode("n3")
	check(t, x, want("a:1"), map[string]NodeBytes{"n1": {Total: 700, Present: 700}})
}

// After any changes the best size is the one with the most votes, and sizes without votes are
// forgotten.
func TestSizeVotesEqualACount(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	var c sizeVotes
	counts := map[int64]int{}
	for range 10_000 {
		size := random.Int64N(4)
		if counts[size] > 0 && random.IntN(2) == 0 {
			c.remove(size, false)
			if counts[size]--; counts[size] == 0 {
				delete(counts, size)
			}
		} else if len(counts) < 4 || counts[size] < 5 {
			c.add(size, false)
			counts[size]++
		}
		best, most, total := int64(0), 0, 0
		for size, count := range counts {
			total += count
			if count > most || count == most && size < best {
				best, most = size, count
			}
		}
		if c.total != total || total > 0 && (c.best != best || c.count != most || len(c.others) != len(counts)-1) {
			t.Fatalf("%+v, want best %d of %v", c, best, counts)
		}
	}
}

// TestManyParts: layers that images of a pod share count once, too, where the images have so
// many that a map finds them; the second one here has them after the map was made.
func TestManyParts(t *testing.T) {
	parts := func(from, to int) (layers []Layer) {
		for i := from; i < to; i++ {
			layers = append(layers, Layer{Digest: digest(fmt.Sprint(i)), Size: 10})
		}
		return layers
	}
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{
		{Names: []string{"docker.io/library/one:1"}, Layers: parts(0, many+10)},
		{Names: []string{"docker.io/library/two:1"}, Layers: parts(many, many+20)},
		{Names: []string{"docker.io/library/three:1"}, Layers: parts(many+5, many+30)},
	})
	const all = (many + 30) * 10
	check(t, x, want("one:1", "two:1", "three:1"), map[string]NodeBytes{"n1": {Total: all, Present: all}, "n2": {Total: all}})
}

// The last size of an image is forgotten once the image is named without one.
func TestSizeVotesWithoutASize(t *testing.T) {
	var c sizeVotes
	for _, step := range []struct {
		change       func(int64, bool)
		size, best   int64
		total, count int
	}{
		{c.add, 600, 600, 1, 1}, {c.remove, 600, 600, 0, 0}, {c.add, 0, 0, 1, 0}, {c.add, 500, 500, 2, 1}, {c.remove, 500, 0, 1, 0}, {c.remove, 0, 0, 0, 0},
	} {
		if step.change(step.size, true); c.best != step.best || c.total != step.total || c.count != step.count {
			t.Errorf("%+v after %+v", c, step)
		}
	}
}

// An image without a size has no vote, not even in a tie.
func TestNamesWithoutSizes(t *testing.T) {
	withoutLayers := func(size int64, compressed bool) []Image {
		return []Image{{Names: []string{"docker.io/library/one:1"}, SizeBytes: size, Compressed: compressed}}
	}
	for _, compressed := range []bool{false, true} {
		x := newIndex("n1", "n2", "n3", "n4")
		x.SetImages("s", "n1", withoutLayers(0, false))
		x.SetImages("s", "n2", withoutLayers(600, compressed))
		x.SetImages("s", "n3", withoutLayers(0, false))
		check(t, x, want("one:1"), map[string]NodeBytes{
			"n1": {Total: 600, Present: 600}, "n2": {Total: 600, Present: 600}, "n3": {Total: 600, Present: 600}, "n4": {Total: 600},
		})
		// The one that reported it goes, and comes back.
		x.SetImages("s", "n2", nil)
		if w := measured(x, want("one:1")); w.Images[0] != ByName {
			t.Errorf("known by %s", w.Images[0])
		}
		x.SetImages("s", "n4", withoutLayers(500, compressed))
		check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: 500, Present: 500}, "n2": {Total: 500}, "n4": {Total: 500, Present: 500}})
		for _, n := range []string{"n1", "n3", "n4"} {
			x.SetImages("s", n, nil)
		}
		if s := x.Stats(); s.Images != 0 || s.Layers != 0 {
			t.Errorf("left are %+v", s)
		}
	}
}

func TestUntrusted(t *testing.T) {
	x := newIndex("n1")
	huge := make([]Layer, 3*maxLayers)
	for i := range huge {
		huge[i] = Layer{digest(fmt.Sprint(i)), 1 << 62}
	}
	x.SetImages("s", "n1", []Image{
		{Names: []string{"docker.io/library/huge:1"}, SizeBytes: -1, Layers: huge},
		{Names: []string{"docker.io/library/twice:1"}, SizeBytes: 1, Layers: []Layer{{digest("a"), 5}, {digest("a"), 7}, {"", 9}, {"image docker.io/library/x:1", 9}}},
		{Names: []string{"<none>:<none>", "not a name"}, SizeBytes: 5},
		{},
	})
	w := measured(x, want("huge:1"))
	if got, _ := w.Node("n1"); got.Total != maxLayers*maxSize || got.Present != got.Total {
		t.Errorf("huge image: %+v", got)
	}
	check(t, x, want("twice:1"), map[string]NodeBytes{"n1": {Total: 5, Present: 5}})
	if s := x.Stats(); s.Images != 2 {
		t.Errorf("%d images, want 2", s.Images)
	}
}

func TestNamesWithoutLayers(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	withoutLayers := func(size int64, names ...string) Image { return Image{Names: names, SizeBytes: size} }
	one := []string{"docker.io/library/one@" + digest("one"), "docker.io/library/one:1"}
	x.SetImages("s", "n1", []Image{withoutLayers(600, one...)})
	x.SetImages("s", "n2", []Image{withoutLayers(600, one[0], "docker.io/library/one:alias")})

	// A stock control plane: no node reports layers, sizes are as reported.
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: 600, Present: 600}, "n2": {Total: 600, Present: 600}, "n3": {Total: 600}})
	if w := measured(x, want("one:1")); w.Images[0] != ByName {
		t.Errorf("known by %s", w.Images[0])
	}
	// A node that reports layers comes. Compressed bytes are half of the
	// uncompressed ones, also in the estimate for images without layers.
	x.SetImages("s", "n3", []Image{{Names: []string{"docker.io/library/two:1"}, SizeBytes: 2 * sum("ab"), Layers: image("ab").Layers}})
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: 300, Present: 300}, "n3": {Total: 300}})
	check(t, x, want("one:1", "two:1"), map[string]NodeBytes{
		"n1": {Total: 300 + sum("ab"), Present: 300}, "n3": {Total: 300 + sum("ab"), Present: sum("ab")},
	})
	// A node reports the layers of the image itself: the others have it too, and a
	// layer shared with another image counts once.
	x.SetImages("s", "n3", []Image{{Names: one[1:], SizeBytes: 2 * sum("cd"), Layers: image("cd").Layers}})
	x.SetImages("s", "n1", []Image{withoutLayers(600, one...), image("d", "docker.io/library/d:1")})
	check(t, x, want("one:1"), map[string]NodeBytes{
		"n1": {Total: sum("cd"), Present: sum("cd")}, "n2": {Total: sum("cd")}, "n3": {Total: sum("cd"), Present: sum("cd")},
	})
}

func TestPlatforms(t *testing.T) {
	x := newIndex("amd")
	x.SetNode("arm", arm64)
	x.SetNode("arm2", arm64)
	x.SetImages("s", "amd", []Image{image("ab", "docker.io/library/one:1"), image("c", "docker.io/library/amd-only:1")})
	x.SetImages("s", "arm", []Image{image("cd", "docker.io/library/one:1")})

	check(t, x, want("one:1"), map[string]NodeBytes{
		"amd": {Total: sum("ab"), Present: sum("ab")}, "arm": {Total: sum("cd"), Present: sum("cd")}, "arm2": {Total: sum("cd")},
	})
	check(t, x, want("amd-only:1"), map[string]NodeBytes{"amd": {Total: sum("c"), Present: sum("c")}, "arm": {}})
	x.SetNode("arm", amd64) // had a wrong platform at first
	check(t, x, want("one:1"), map[string]NodeBytes{"arm2": {}, "arm": {Total: sum("ab"), Present: sum("ab")}})
}

func TestOtherSources(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	x.SetImages("NodeStatus", "n1", []Image{image("ab", "docker.io/library/one:1")})
	x.SetImages("agent", "n2", []Image{image("ab", "docker.io/library/one:1")})
	x.SetImages("agent", "n1", []Image{image("ab", "docker.io/library/one:1"), image("c", "docker.io/library/c:1")})

	total := sum("ab")
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: total, Present: total}, "n2": {Total: total, Present: total}, "n3": {Total: total}})
	x.SetImages("NodeStatus", "n1", nil)
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: total, Present: total}})
	x.SetImages("agent", "n1", nil)
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: total}, "n2": {Total: total, Present: total}})

	// A manifest takes precedence over what nodes report; a node that has the
	// name has the image.
	moved := want("one:1", "new:1")
	moved[0].Manifests = []Manifest{{Platform: amd64, Layers: image("ac").Layers}}
	moved[1].Manifests = []Manifest{{Platform: amd64, Layers: []Layer{{digest("a"), 999}, {digest("unheard"), 5}}}}
	check(t, x, moved, map[string]NodeBytes{
		"n1": {Total: sum("ac") + 5}, "n2": {Total: sum("ac") + 5, Present: sum("ac")},
	})
}

// What a node holds is decided by its own report, whatever another source has.
func TestNodesOwnReportsWin(t *testing.T) {
	setup := func() *Index {
		x := newIndex("old", "bare", "base", "none")
		x.SetImages("NodeStatus", "old", []Image{image("ab", "docker.io/library/one:1")})
		x.SetImages("NodeStatus", "bare", []Image{{Names: []string{"docker.io/library/one:1"}, SizeBytes: 1000}})
		x.SetImages("NodeStatus", "base", []Image{image("bd", "docker.io/library/two:1")})
		return x
	}
	// The tag moved to other layers in the registry. One of them has another size
	// than nodes report.
	wanted := want("one:1")
	wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: []Layer{{digest("b"), 999}, {digest("c"), size('c')}}}}
	total := sum("bc")

	t.Run("a node that has the name has the image", func(t *testing.T) {
		check(t, setup(), wanted, map[string]NodeBytes{
			"old": {Total: total, Present: total}, "bare": {Total: total, Present: total},
			"base": {Total: total, Present: sum("b")}, "none": {Total: total},
		})
	})
	t.Run("unless it asks the registry", func(t *testing.T) {
		always := slices.Clone(wanted)
		always[0].PullAlways = true
		check(t, setup(), always, map[string]NodeBytes{
			"old": {Total: total, Present: sum("b")}, "bare": {Total: total, Present: total}, // its layers are not known
			"base": {Total: total, Present: sum("b")}, "none": {Total: total},
		})
	})
	t.Run("nothing is pulled where the name is", func(t *testing.T) {
		x := setup()
		for node, missing := range map[string]int64{"old": 0, "bare": 0, "base": sum("c"), "none": total} {
			if got := x.Reserve(types.UID(node), node, wanted, joining, t0, t0.Add(time.Minute)); got != missing {
				t.Errorf("%s has to pull %d, want %d", node, got, missing)
			}
		}
	})
	t.Run("layers count where they are reported", func(t *testing.T) {
		// An image consists of one layer for a source. A node that reports
		// other layers for the image does not get this layer.
		lie := want("two:1")
		lie[0].Manifests = []Manifest{{Platform: amd64, Layers: image("e").Layers}}
		x := setup()
		x.SetImages("NodeStatus", "none", []Image{image("d", "docker.io/library/three:1")})
		check(t, x, lie, map[string]NodeBytes{
			"base": {Total: sum("e"), Present: sum("e")}, "none": {Total: sum("e")}, "old": {Total: sum("e")},
		})
		check(t, x, want("three:1"), map[string]NodeBytes{"none": {Total: sum("d"), Present: sum("d")}, "base": {Total: sum("d"), Present: sum("d")}})
	})
}

// A manifest without image index is valid for every platform that has none of its
// own.
func TestEveryPlatform(t *testing.T) {
	x := newIndex("amd")
	x.SetNode("arm", arm64)
	x.SetNode("unknown", Platform{})
	x.SetImages("s", "amd", []Image{image("a", "docker.io/library/base:1")})
	x.SetImages("s", "arm", []Image{image("ab", "docker.io/library/base:2")})
	wanted := want("one:1")
	for _, manifests := range [][]Manifest{
		{{Layers: image("abc").Layers}, {Platform: amd64, Layers: image("ad").Layers}},
		{{Platform: amd64, Layers: image("ad").Layers}, {Layers: image("abc").Layers}},
	} {
		wanted[0].Manifests = manifests
		check(t, x, wanted, map[string]NodeBytes{
			"amd": {Total: sum("ad"), Present: sum("a")}, "arm": {Total: sum("abc"), Present: sum("ab")}, "unknown": {Total: sum("abc")},
		})
	}
	wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: image("ad").Layers}}
	check(t, x, wanted, map[string]NodeBytes{"amd": {Total: sum("ad"), Present: sum("a")}, "arm": {}})
	wanted[0].Manifests = []Manifest{{}} // nothing to pull
	check(t, x, wanted, map[string]NodeBytes{"amd": {}, "arm": {}})
	if images := measured(x, wanted).Images; images[0] != ByLayers {
		t.Errorf("an image without layers is known by %s", images[0])
	}
}

func TestReported(t *testing.T) {
	x := newIndex("n")
	x.SetImages("s", "n", []Image{image("a", "docker.io/library/one:1")})
	x.Reserve("p", "n", want("expected:1"), joining, t0, t0.Add(time.Minute))
	for name, reported := range map[string]bool{"one:1": true, "one:2": false, "expected:1": false} {
		if got := x.Reported(append(want("none:1")[0].Names, want(name)[0].Names...)); got != reported {
			t.Errorf("%s: reported %t", name, got)
		}
	}
	x.SetImages("s", "n", nil)
	if x.Reported(want("one:1")[0].Names) {
		t.Error("what is gone counts as reported")
	}
}

func TestReserve(t *testing.T) {
	later := t0.Add(time.Minute)
	setup := func() *Index {
		x := newIndex("n1", "n2")
		x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1")})
		return x
	}
	known := want("one:1")
	total := sum("ab")
	reserve := func(x *Index, pod types.UID, node string, wanted []Wanted, want int64) {
		t.Helper()
		if got := x.Reserve(pod, node, wanted, joining, t0, later); got != want {
			t.Errorf("Reserve of pod %s on %s: %d bytes to pull, want %d", pod, node, got, want)
		}
	}

	t.Run("present", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n1", known, 0)
		if s := x.Stats(); s.Reservations != 0 {
			t.Errorf("a pod with nothing to pull has a reservation: %+v", s)
		}
	})
	t.Run("unknown node", func(t *testing.T) { reserve(setup(), "p", "n9", known, 0) })
	t.Run("arriving, then released", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n2", known, total)
		reserve(x, "p", "n2", known, 0) // again: nothing changes
		reserve(x, "q", "n2", known, 0)
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Arriving: total, Pending: total}})
		x.Release("p")
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Arriving: total, Pending: total}})
		x.Release("q")
		x.Release("q")
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total}})
	})
	t.Run("moved to another node", func(t *testing.T) {
		x := setup()
		x.SetNode("n3", amd64)
		reserve(x, "p", "n2", known, total)
		reserve(x, "p", "n3", known, total)
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total}, "n3": {Total: total, Arriving: total, Pending: total}})
	})
	t.Run("started", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n2", known, total)
		reserve(x, "q", "n2", known, 0)
		x.started("p", later)
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Present: total}})
		reserve(x, "r", "n2", known, 0) // it is there: nothing is pending
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Present: total}})
		x.Release("q")
		x.Release("r")
		x.Release("p") // deleted, but its image is there
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Present: total}})
	})
	t.Run("reported", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n2", known, total)
		x.SetImages("s", "n2", []Image{image("a", "docker.io/library/other:1")})
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Present: sum("a"), Arriving: sum("b"), Pending: sum("b")}})
		x.SetImages("s", "n2", []Image{image("ab", "docker.io/library/one:1")})
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total, Present: total}})
		if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
			t.Errorf("left: %+v", s)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n2", known, total)
		w := &Measurement{}
		x.Measure(known, joining, later.Add(-time.Nanosecond), w)
		if got, _ := w.Node("n2"); got.Arriving != total {
			t.Errorf("before the deadline: %+v", got)
		}
		x.Measure(known, joining, later, w)
		if got, _ := w.Node("n2"); got != (NodeBytes{Total: total}) {
			t.Errorf("after the deadline: %+v", got)
		}
	})
	t.Run("crowded", func(t *testing.T) {
		x := setup()
		for i := range 3 {
			x.Reserve(types.UID(fmt.Sprint(i)), "n2", known, joining, t0, later)
		}
		w := &Measurement{}
		x.Measure(known, Rules{MaxWaiting: 3, JoinsDownloads: true}, t0, w)
		if got, _ := w.Node("n2"); got != (NodeBytes{Total: total, Crowded: total, Pending: total}) || got.Missing() != 0 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("unknown image on two nodes", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n1", want("new:1"), 0)
		reserve(x, "q", "n2", want("new:1"), 0) // what the first one expects is no known layer
	})
	t.Run("unknown image, known later", func(t *testing.T) {
		x := setup()
		unknown := want("new:1")
		reserve(x, "p", "n2", unknown, 0)
		reserve(x, "q", "n2", unknown, 0)
		check(t, x, unknown, map[string]NodeBytes{"n2": {Total: 100, Arriving: 100, Pending: 100}, "n1": {Total: 100}})
		if w := measured(x, unknown); w.Images[0] != Arriving {
			t.Errorf("known by %s", w.Images[0])
		}
		x.SetImages("s", "n1", []Image{image("bc", "docker.io/library/new:1")})
		check(t, x, unknown, map[string]NodeBytes{"n2": {Total: sum("bc"), Arriving: sum("bc"), Pending: 100}})
		x.started("p", later)
		check(t, x, unknown, map[string]NodeBytes{"n2": {Total: sum("bc"), Present: sum("bc")}})
		x.SetImages("s", "n2", []Image{image("bc", "docker.io/library/new:1")})
		if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
			t.Errorf("left: %+v", s)
		}
	})
	t.Run("invalid name", func(t *testing.T) { reserve(setup(), "p", "n2", []Wanted{{}}, 0) })
	t.Run("node deleted", func(t *testing.T) {
		x := setup()
		reserve(x, "p", "n2", known, total)
		x.DeleteNode("n2")
		x.SetNode("n2", amd64)
		check(t, x, known, map[string]NodeBytes{"n2": {Total: total}})
		x.started("p", later)
		x.Release("p")
	})
}

// state is an index in a form that does not depend on how it came about.
type state struct {
	Layers  map[string]string
	Names   map[string][]string
	Nodes   map[string]Platform
	Pending map[string]int64
	Stats   Stats
	Ratio   [2]int64
}

func (x *Index) state() state {
	s := state{map[string]string{}, map[string][]string{}, map[string]Platform{}, map[string]int64{}, x.Stats(), [2]int64{x.compressed, x.uncompressed}}
	nodes := func(slots []Slot) (names []string) {
		for _, n := range slots {
			names = append(names, x.slots[n].name)
		}
		slices.Sort(names)
		return names
	}
	for key, l := range x.layers {
		var coming []string
		for _, a := range l.arriving {
			coming = append(coming, fmt.Sprint(x.slots[a.slot].name, a.image, a.refs, a.waiting, a.arrived, a.bytes))
		}
		slices.Sort(coming)
		s.Layers[key] = fmt.Sprint(l.size, l.opaque, l.refs, l.votes.total, nodes(slices.Collect(l.nodes.all())), coming)
	}
	for key, n := range x.names {
		for _, r := range n.reports {
			s.Names[string(key)] = append(s.Names[string(key)], fmt.Sprint(r.content.key, nodes(r.nodes)))
		}
		slices.Sort(s.Names[string(key)])
	}
	for name, n := range x.nodes {
		s.Nodes[name] = n.group.Platform
		s.Pending[name] = x.pending[n.slot]
	}
	return s
}

// world is what an index should hold, kept the simple way.
type world struct {
	platforms map[string]Platform
	images    map[string]map[string][]Image
}

func (w *world) index() *Index {
	x := New()
	for _, node := range slices.Sorted(maps.Keys(w.platforms)) {
		x.SetNode(node, w.platforms[node])
		for source, images := range w.images[node] {
			x.SetImages(source, node, images)
		}
	}
	return x
}

func randomImage(r *rand.Rand) Image {
	var img Image
	for range 1 + r.IntN(2) {
		img.Names = append(img.Names, fmt.Sprintf("example.com/image%d:%d", r.IntN(20), r.IntN(2)))
	}
	if r.IntN(3) == 0 {
		img.Names = append(img.Names, "example.com/image@"+digest(fmt.Sprint(r.IntN(40))))
	}
	img.SizeBytes = int64(r.IntN(3)) * 1000
	for range r.IntN(6) {
		l := r.IntN(30)
		size := int64(l) * 10
		if r.IntN(20) == 0 {
			size++ // its own vote
		}
		img.Layers = append(img.Layers, Layer{digest(fmt.Sprint("layer", l)), size})
	}
	return img
}

func randomJoins(r *rand.Rand) *bool { return []*bool{nil, ptr.To(true), ptr.To(false)}[r.IntN(3)] }

// After any events, the index equals one that is built from what is left.
func TestEqualsRebuild(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test that can be repeated
		w := &world{map[string]Platform{}, map[string]map[string][]Image{}}
		rules := Rules{MaxWaiting: 10, UnknownBytes: 77, JoinsDownloads: seed%2 == 0}
		x := New()
		now := t0
		pods := 0
		for event := range 10_000 {
			node := fmt.Sprintf("node%d", r.IntN(12))
			pod := types.UID(fmt.Sprint(r.IntN(pods + 1)))
			now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
			deadline := now.Add(time.Duration(r.IntN(60)) * time.Second)
			switch kind := r.IntN(20); {
			case kind < 2:
				x.DeleteNode(node)
				delete(w.platforms, node)
				delete(w.images, node)
			case kind < 12:
				source := []string{"NodeStatus", "agent"}[r.IntN(2)]
				platform := []Platform{amd64, amd64, amd64, arm64}[r.IntN(4)]
				images := slices.Clone(w.images[node][source])
				for range 1 + r.IntN(3) {
					if len(images) > 0 && r.IntN(2) == 0 {
						images = slices.Delete(images, 0, 1)
					} else {
						images = append(images, randomImage(r))
					}
					if r.IntN(8) == 0 {
						images = append(images, images...) // each once more
					}
				}
				x.SetNode(node, platform)
				x.SetJoins(node, randomJoins(r))
				x.SetImages(source, node, images)
				w.platforms[node] = platform
				if w.images[node] == nil {
					w.images[node] = map[string][]Image{}
				}
				w.images[node][source] = images
			case kind < 16:
				pods++
				x.Reserve(types.UID(fmt.Sprint(pods)), node, want(fmt.Sprintf("example.com/image%d:0", r.IntN(20)), fmt.Sprintf("example.com/image%d:0", r.IntN(20))), rules, now, deadline)
			case kind < 17:
				x.Follow(randomlyPlaced(r, pod, node, now), rules, now)
			case kind < 18:
				x.Release(pod)
			default:
				x.Measure(want(fmt.Sprintf("example.com/image%d:0", r.IntN(20))), rules, now, &Measurement{})
			}
			if event%1000 == 999 {
				checkInvariants(t, x)
			}
		}
		// Without reservations both must be equal in everything.
		x.Measure(nil, rules, now.Add(time.Hour), &Measurement{})
		for i := range pods + 1 { // those that last as long as their pods
			x.Release(types.UID(fmt.Sprint(i)))
		}
		if got, rebuilt := x.state(), w.index().state(); !reflect.DeepEqual(got, rebuilt) {
			t.Fatalf("seed %d: the index differs from a rebuild:\n%+v\n%+v", seed, got, rebuilt)
		}
		// They must also have the same answers about every image.
		rebuilt := w.index()
		for i := range 20 {
			wanted := want(fmt.Sprintf("example.com/image%d:0", i), fmt.Sprintf("example.com/image%d:1", (i*7)%20))
			a, b := measured(x, wanted), measured(rebuilt, wanted)
			for node := range w.platforms {
				wa, _ := a.Node(node)
				wb, _ := b.Node(node)
				if wa != wb {
					t.Fatalf("seed %d, %s: %+v, rebuilt %+v", seed, node, wa, wb)
				}
			}
		}
	}
}

// randomlyPlaced returns what a pod may bring, with any times.
func randomlyPlaced(r *rand.Rand, pod types.UID, node string, now time.Time) *Placed {
	images := func() (wanted []Wanted) {
		for range r.IntN(3) {
			wanted = append(wanted, want(fmt.Sprintf("example.com/image%d:0", r.IntN(20)))...)
		}
		return wanted
	}
	until := func() time.Time {
		if r.IntN(5) == 0 {
			return time.Time{}
		}
		return now.Add(time.Duration(r.IntN(60)-5) * time.Second)
	}
	return &Placed{Pod: pod, Node: node, There: images(), ThereUntil: now.Add(time.Duration(r.IntN(60)) * time.Second), Coming: images(), ComingUntil: until(), PendingUntil: until()}
}

func checkInvariants(t *testing.T, x *Index) {
	t.Helper()
	pending := make([]int64, len(x.slots))
	for _, l := range x.layers {
		if nodes := slices.Collect(l.nodes.all()); !slices.IsSorted(nodes) || len(slices.Compact(nodes)) != l.nodes.n {
			t.Fatalf("layer %s: nodes %v", l.key, nodes)
		}
		for _, a := range l.arriving {
			if l.nodes.has(a.slot) || a.bytes < 0 || a.refs <= 0 || a.pulled < 0 || a.pulled > a.waiting || a.waiting > a.refs {
				t.Fatalf("layer %s: arriving %+v, nodes %v", l.key, a, l.nodes)
			}
			if !a.arrived && a.pulled > 0 {
				pending[a.slot] += a.bytes
			}
		}
	}
	if !slices.Equal(pending, x.pending) {
		t.Fatalf("pending %v, by layers %v", x.pending, pending)
	}
	for key, r := range x.reports {
		if r.key != key || len(r.nodes) == 0 || x.contents[r.content.key] != r.content {
			t.Fatalf("report %+v, content %+v", r, r.content)
		}
		for _, l := range r.content.layers {
			if x.layers[l.key] != l {
				t.Fatalf("layer %s of a report is not in the index", l.key)
			}
		}
	}
	for key, r := range x.reservations {
		if r.node.reservations[key] != r || len(r.brings) == 0 || r.there != key.there || r.there && r.pulled {
			t.Fatalf("reservation of %v: %+v", key, r)
		}
	}
}

// Measured values stay within bounds, and one more layer on a node never reduces
// them.
func TestMeasureProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a test that can be repeated
	for i := range 2000 {
		rules := Rules{MaxWaiting: 2, UnknownBytes: 50, JoinsDownloads: i%2 == 0}
		x := newIndex("n1", "n2", "n3")
		images := map[string][]Image{}
		for _, node := range []string{"n1", "n2", "n3"} {
			for range r.IntN(4) {
				images[node] = append(images[node], randomImage(r))
			}
			x.SetImages("s", node, images[node])
		}
		wanted := want(fmt.Sprintf("example.com/image%d:0", r.IntN(20)))
		wanted[0].PullAlways = r.IntN(2) == 0
		wanted[0].Manifests = []Manifest{{Platform: amd64, Layers: randomImage(r).Layers}}
		for i := range r.IntN(4) {
			brings := wanted
			if r.IntN(3) == 0 { // before the manifest was known
				brings = []Wanted{{Names: wanted[0].Names}}
			}
			x.Reserve(types.UID(fmt.Sprint(i)), []string{"n1", "n2"}[r.IntN(2)], brings, rules, t0, t0.Add(time.Hour))
		}
		before, _ := measured(x, wanted).Node("n1")
		if before.Present < 0 || before.Arriving < 0 || before.Pending < 0 || before.Crowded < 0 ||
			before.Present+before.Arriving+before.Crowded > before.Total {
			t.Fatalf("%+v", before)
		}
		// The same size as everywhere, and a name that is not wanted.
		l := wanted[0].Manifests[0].Layers
		if len(l) == 0 {
			continue
		}
		added := l[r.IntN(len(l))]
		if known := x.layers[added.Digest]; known != nil {
			added.Size = known.size
		}
		x.SetImages("s", "n1", append(images["n1"], Image{Names: []string{"example.com/added:1"}, Layers: []Layer{added}}))
		after, _ := measured(x, wanted).Node("n1")
		if after.Total == before.Total && (after.Present < before.Present || after.Missing() > before.Missing() || after.Pending > before.Pending) {
			t.Fatalf("with %v added: %+v, before %+v", added, after, before)
		}
	}
}

// A size that is compressed already is not scaled, and does not count in the ratio by which
// others are.
func TestCompressedSizes(t *testing.T) {
	x := newIndex("crio", "containerd", "empty")
	both := image("cd", "quay.io/both:1") // 120 of 1,000 bytes
	x.SetImages("s", "crio", []Image{both, {Names: []string{"quay.io/a:1"}, SizeBytes: 500}})
	sixty := Image{Names: []string{"quay.io/b:1"}, SizeBytes: 65, Compressed: true}
	explained := image("ab", "quay.io/explained:1")
	explained.SizeBytes, explained.Compressed = 40, true
	x.SetImages("s", "containerd", []Image{sixty, explained})
	check(t, x, want("quay.io/a:1"), map[string]NodeBytes{"crio": {Total: 60, Present: 60}, "containerd": {Total: 60}, "empty": {Total: 60}})
	check(t, x, want("quay.io/b:1"), map[string]NodeBytes{"crio": {Total: 65}, "containerd": {Total: 65, Present: 65}, "empty": {Total: 65}})
	// Both kinds of nodes have it by name.
	x.SetImages("s", "empty", []Image{{Names: []string{"quay.io/b:1"}, SizeBytes: 500}})
	m := measured(x, want("quay.io/b:1"))
	for _, node := range []string{"containerd", "empty"} {
		if bytes, _ := m.Node(node); bytes.Missing() != 0 || bytes.Total == 0 {
			t.Errorf("%s: %+v", node, bytes)
		}
	}
	if got, ok := x.Image(want("quay.io/explained:1")[0], "containerd"); !ok || !got.Compressed || got.SizeBytes != 40 {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, node := range []string{"crio", "containerd", "empty"} {
		x.SetImages("s", node, nil)
	}
	if x.compressed != 0 || x.uncompressed != 0 || len(x.layers) != 0 {
		t.Errorf("%d of %d bytes, %d layers are left", x.compressed, x.uncompressed, len(x.layers))
	}
}

package index

import (
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/imageref"
)

// Names differ by where each ends, not only by the text of all of them.
func TestNamesThatJoinToTheSameText(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{image("a", "quay.io/a:1", "2")})
	x.SetImages("s", "n2", []Image{image("a", "quay.io/a:12")})
	check(t, x, want("quay.io/a:12"), map[string]NodeBytes{"n1": {Total: sum("a"), Present: sum("a")}, "n2": {Total: sum("a"), Present: sum("a")}})
	x.SetImages("s", "n1", nil)
	if !x.Reported([]imageref.Canonical{"quay.io/a:12"}) || x.Reported([]imageref.Canonical{"quay.io/a:1"}) {
		t.Error("the image of n2 is taken for that of n1")
	}
}

// Sizes, too: 1 and 23 are not 12 and 3.
func TestSizesThatJoinToTheSameText(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{{Names: []string{"quay.io/a:1"}, SizeBytes: 23, Layers: []Layer{{digest("a"), 1}}}})
	x.SetImages("s", "n2", []Image{{Names: []string{"quay.io/b:1"}, SizeBytes: 3, Layers: []Layer{{digest("a"), 12}}}})
	if n := x.Stats().Images; n != 2 {
		t.Errorf("%d images, want 2", n)
	}
}

// Compressed bytes are an estimate for an image that is known by name. Nodes whose
// layers are larger than their images do not make it grow.
func TestCompressedMoreThanUncompressed(t *testing.T) {
	x := newIndex("n1")
	x.SetImages("s", "n1", []Image{
		{Names: []string{"quay.io/odd:1"}, SizeBytes: 100, Layers: []Layer{{digest("a"), 300}}},
		{Names: []string{"quay.io/name:1"}, SizeBytes: 50},
	})
	check(t, x, want("quay.io/name:1"), map[string]NodeBytes{"n1": {Total: 50, Present: 50}})
}

// Nodes that invent platforms cost no more than a bounded number of them.
func TestManyPlatforms(t *testing.T) {
	x := New()
	const nodes = 300 // more than a byte can count
	for i := range nodes {
		x.SetNode(fmt.Sprint("n", i), Platform{"linux", fmt.Sprint("invented", i)})
		x.SetImages("s", fmt.Sprint("n", i), []Image{image("a", "quay.io/a:1")})
	}
	m := measured(x, want("quay.io/a:1"))
	measuredNodes := 0
	for node := range m.Nodes() {
		switch bytes, ok := m.Node(node); {
		case !ok:
			t.Errorf("%s is not known", node)
		case bytes.Total == sum("a"):
			measuredNodes++
		case bytes != (NodeBytes{}):
			t.Errorf("%s: %+v", node, bytes)
		}
	}
	if measuredNodes != maxGroups {
		t.Errorf("%d nodes, each of its own platform, were measured, want %d", measuredNodes, maxGroups)
	}
}

// However many groups there are, that of most nodes is measured, each time.
func TestMostNodesCount(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetImages("s", "n1", []Image{image("a", "quay.io/a:1")})
	for i := range 3 * maxGroups {
		x.SetNode(fmt.Sprint("odd", i), Platform{"linux", fmt.Sprint("invented", i)})
	}
	for range 20 {
		check(t, x, want("quay.io/a:1"), map[string]NodeBytes{"n1": {Total: sum("a"), Present: sum("a")}, "n2": {Total: sum("a")}})
	}
}

// Images whose layers have more bytes than there can be do not make the sums over all images overflow.
func TestSumsOfHugeImages(t *testing.T) {
	x := newIndex("n1")
	huge := Image{SizeBytes: maxSize}
	for i := range maxLayers {
		huge.Layers = append(huge.Layers, Layer{digest(fmt.Sprint("huge", i)), maxSize})
	}
	for i := range 10 {
		huge.SizeBytes--
		x.SetImages(fmt.Sprint("s", i), "n1", []Image{huge})
	}
	if x.compressed != 10*maxSize {
		t.Errorf("%d compressed bytes of 10 images, want the bound of each", x.compressed)
	}
}

// A pod of hundreds of images costs no more than a bounded number of layers.
func TestPodOfTooManyLayers(t *testing.T) {
	x := newIndex("n1")
	var wanted []Wanted
	for i := range 20 {
		w := want(fmt.Sprint("quay.io/a:", i))[0]
		m := Manifest{Platform: amd64}
		for j := range maxLayers {
			m.Layers = append(m.Layers, Layer{digest(fmt.Sprint(i, j)), 1})
		}
		w.Manifests = []Manifest{m}
		wanted = append(wanted, w)
	}
	check(t, x, wanted, map[string]NodeBytes{"n1": {Total: maxParts}})
	if got := x.Reserve("p", "n1", wanted, joining, t0, t0.Add(time.Hour)); got != maxParts {
		t.Errorf("%d bytes to pull", got)
	}
}

// A manifest of more layers than any runtime can use counts in part.
func TestManifestOfTooManyLayers(t *testing.T) {
	x := newIndex("n1")
	wanted := want("quay.io/a:1")
	var layers []Layer
	for i := range 2 * maxLayers {
		layers = append(layers, Layer{digest(fmt.Sprint(i)), 10})
	}
	wanted[0].Manifests = []Manifest{{Layers: layers}}
	check(t, x, wanted, map[string]NodeBytes{"n1": {Total: 10 * maxLayers}})
}

// The limits of what a node reports are those that docs/security.md states.
func TestLimitsOfReports(t *testing.T) {
	x := newIndex("n1")
	var images []Image
	for i := range 1100 {
		one := Image{SizeBytes: 2 << 40}
		for j := range 20 {
			one.Names = append(one.Names, fmt.Sprintf("quay.io/a%d:%d", i, j))
		}
		images = append(images, one)
	}
	for i := range 600 {
		images[0].Layers = append(images[0].Layers, Layer{digest(fmt.Sprint(i)), 2 << 40})
	}
	x.SetImages("s", "n1", images)
	if s := x.Stats(); s.Images != 1024 || s.Names != 1024*16 || s.Layers != 512+1023 {
		t.Errorf("%+v, want 1,024 images of 16 names, one of 512 layers and the others of one piece", s)
	}
	check(t, x, want("quay.io/a0:0"), map[string]NodeBytes{"n1": {Total: 512 << 40, Present: 512 << 40}})
}

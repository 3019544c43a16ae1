package contents

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func digest(name string) string { return fmt.Sprintf("sha256:%064x", name) }

func layer(name string, size int64) v1alpha1.ImageLayer {
	return v1alpha1.ImageLayer{Digest: digest(name), Size: size}
}

func TestSpec(t *testing.T) {
	c := &Contents{
		Runtime: "containerd 2.3.1", InChains: true, JoinsDownloads: ptr.To(true),
		Images: []Image{
			{Names: []string{"quay.io/b:1", digest("b"), "quay.io/b:1"}, Layers: []v1alpha1.ImageLayer{layer("y", 20), layer("x", 10), layer("y", 20)}},
			{Names: []string{"quay.io/a:1"}, Layers: []v1alpha1.ImageLayer{layer("x", 11)}},
			{Names: []string{"quay.io/unknown:1"}},
			{Names: []string{"no name", "", `"`, "<", strings.Repeat("a", v1alpha1.MaxNodeNameLength+1), "ü"}, Layers: []v1alpha1.ImageLayer{layer("z", 1)}},
			{Names: []string{"quay.io/hostile:1"}, Layers: []v1alpha1.ImageLayer{layer("x", 10), {Digest: "sha256:1"}}},
			{Names: []string{"quay.io/negative:1"}, Layers: []v1alpha1.ImageLayer{{Digest: digest("n"), Size: -1}}},
			{Names: []string{"quay.io/huge:1"}, Layers: []v1alpha1.ImageLayer{{Digest: digest("h"), Size: v1alpha1.MaxLayerBytes + 1}}},
			{Names: []string{"quay.io/many:1"}, Layers: slices.Repeat([]v1alpha1.ImageLayer{layer("m", 1)}, v1alpha1.MaxLayers+1)},
		},
	}
	want := &v1alpha1.NodeLayersSpec{
		Runtime: "containerd 2.3.1", Reuse: v1alpha1.ReuseInChains, JoinsDownloads: ptr.To(true),
		TotalImages: 7, TotalLayers: 2, TotalBytes: 30,
		Layers: []string{digest("x") + " 10", digest("y") + " 20"},
		Images: []string{
			"0 quay.io/a:1", "- quay.io/hostile:1", "- quay.io/huge:1", "- quay.io/many:1", "- quay.io/negative:1", "- quay.io/unknown:1",
			"1,0,1 " + digest("b") + " quay.io/b:1",
		},
	}
	got := c.Spec(0, math.MaxInt)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	slices.Reverse(c.Images)
	if again := c.Spec(0, math.MaxInt); !reflect.DeepEqual(again, want) {
		t.Errorf("in another order: %+v", again)
	}
	if empty := (&Contents{}).Spec(0, 0); empty.Reuse != v1alpha1.ReuseByDigest || len(empty.Layers)+len(empty.Images) > 0 {
		t.Errorf("%+v", empty)
	}
}

func TestNames(t *testing.T) {
	var names []string
	for i := range 2 * v1alpha1.MaxNodeImageNames {
		names = append(names, fmt.Sprintf("quay.io/a:%02d", i))
	}
	names = append(names, digest("manifest"))
	if got := listable(names); len(got) != v1alpha1.MaxNodeImageNames || got[0] != digest("manifest") || got[1] != "quay.io/a:00" {
		t.Errorf("%q", got)
	}
}

// Images that were added have so many names and layers together, each at least a name.
func TestAdd(t *testing.T) {
	const n = 16_384
	c := &Contents{}
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("quay.io/%s:%d", strings.Repeat("a", 300), i))
	}
	for range n {
		c.Add(Image{Names: append(names, digest("a")), Layers: make([]v1alpha1.ImageLayer, 100)})
	}
	text, layers := 0, 0
	for i, image := range c.Images {
		if image.Names[0] != digest("a") {
			t.Fatalf("image %d: %q", i, image.Names)
		}
		for _, name := range image.Names {
			text += len(name)
		}
		layers += len(image.Layers)
	}
	if len(c.Images) != n || text > maxText+n*len(digest("a")) || text < maxText || layers > maxPlaces || layers < maxPlaces-100 {
		t.Errorf("%d images, %d bytes of names, %d layers", len(c.Images), text, layers)
	}
}

// However much manifests claim, the total is one that the schema takes.
func TestPlus(t *testing.T) {
	var total int64
	for range 3 {
		if total = plus(total, math.MaxInt64/2); total < 0 {
			t.Fatal(total)
		}
	}
	if total != math.MaxInt64 || plus(1<<50, 1<<40) != 1<<50+1<<40 { // a petabyte is none too much
		t.Error(total)
	}
}

// Neither many digests nor many tags keep the others out.
func TestNamesOfBothKinds(t *testing.T) {
	for _, c := range []struct{ digests, tags, wantDigests, wantTags int }{
		{40, 1, 15, 1}, {40, 40, 8, 8}, {2, 40, 2, 14}, {40, 0, 16, 0}, {0, 40, 0, 16}, {3, 4, 3, 4},
	} {
		var names []string
		for i := range c.digests {
			names = append(names, digest(fmt.Sprint(i)))
		}
		for i := range c.tags {
			names = append(names, fmt.Sprintf("quay.io/a:%02d", i))
		}
		digests, tags := 0, 0
		for _, name := range listable(names) {
			if v1alpha1.IsDigest(name) {
				digests++
			} else {
				tags++
			}
		}
		if digests != c.wantDigests || tags != c.wantTags {
			t.Errorf("of %d digests and %d tags: %d and %d, want %d and %d", c.digests, c.tags, digests, tags, c.wantDigests, c.wantTags)
		}
	}
}

// Small layers are left out, unless others above them would be unknown then.
func TestSpecDropsSmallLayers(t *testing.T) {
	for _, chains := range []bool{false, true} {
		c := &Contents{InChains: chains, Images: []Image{
			{Names: []string{"quay.io/a:1"}, Layers: []v1alpha1.ImageLayer{layer("z", 500), layer("small", 99), layer("y", 100)}},
			{Names: []string{"quay.io/b:1"}, Layers: []v1alpha1.ImageLayer{layer("small", 99)}},
		}}
		spec, all := c.Spec(100, math.MaxInt), c.Spec(0, math.MaxInt)
		layers, images, least := []string{digest("y") + " 100", digest("z") + " 500"}, []string{"1,0 quay.io/a:1", "- quay.io/b:1"}, int64(100)
		if chains {
			layers, images, least = all.Layers, all.Images, 0
		}
		slices.Sort(layers)
		if !slices.Equal(spec.Layers, layers) || !slices.Equal(spec.Images, images) || spec.MinLayerBytes != least {
			t.Errorf("chains %t: %q %q from %d bytes on", chains, spec.Layers, spec.Images, spec.MinLayerBytes)
		}
		if spec.TotalLayers != 3 || spec.TotalImages != 2 || spec.TotalBytes != 699 {
			t.Errorf("chains %t: %d layers, %d images, %d bytes in all", chains, spec.TotalLayers, spec.TotalImages, spec.TotalBytes)
		}
	}
}

// size returns what the lists take as JSON.
func size(t *testing.T, spec *v1alpha1.NodeLayersSpec) int {
	t.Helper()
	layers, err := json.Marshal(spec.Layers)
	if err != nil {
		t.Fatal(err)
	}
	images, err := json.Marshal(spec.Images)
	if err != nil {
		t.Fatal(err)
	}
	return len(layers) + len(images)
}

// Beyond the limit, those images go that cost most for what they save; what is left is
// complete.
func TestSpecCuts(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 24))
		c := &Contents{}
		for i := range 200 + r.IntN(2000) {
			image := Image{Names: []string{fmt.Sprintf("registry.example.com/team/image-%d:v1", i), digest(fmt.Sprint("manifest", i))}}
			for range r.IntN(30) {
				name := r.IntN(1 + 10*(1+r.IntN(500)))
				image.Layers = append(image.Layers, layer(fmt.Sprint(name), int64(name)*1_000_000))
			}
			c.Images = append(c.Images, image)
		}
		whole := &v1alpha1.NodeLayersSpec{}
		c.lists().write(whole)
		limit := 1000 + r.IntN(200_000)
		spec := c.Spec(0, limit)
		left := int(spec.TotalImages) - len(spec.Images)
		// In two steps, too.
		if seed%2 == 1 {
			var err error
			if spec, err = Smaller(c.Spec(0, 2*limit), limit); err != nil || int(spec.TotalImages) != len(c.Images) {
				t.Fatal(spec, err)
			}
		}
		if got := size(t, spec); got > limit || len(spec.Images) > v1alpha1.MaxNodeImages || len(spec.Layers) > v1alpha1.MaxNodeLayers {
			t.Errorf("seed %d: %d bytes, at most %d; %d images, %d layers", seed, got, limit, len(spec.Images), len(spec.Layers))
		}
		if left != len(whole.Images)-len(spec.Images) && seed%2 == 0 {
			t.Errorf("seed %d: %d left out of %d, %d are there", seed, left, len(whole.Images), len(spec.Images))
		}
		// Half of the limit is used at least: nothing is left out for nothing.
		if got := size(t, spec); left > 0 && len(spec.Images) < v1alpha1.MaxNodeImages && len(spec.Layers) < v1alpha1.MaxNodeLayers/2 && got < limit/2 {
			t.Errorf("seed %d: %d of %d bytes are used, and %d images left out", seed, got, limit, left)
		}
		// The same images, with the same layers.
		before, after := named(t, whole), named(t, spec)
		for name, layers := range after {
			if !slices.Equal(before[name], layers) {
				t.Errorf("seed %d: %s has %v, had %v", seed, name, layers, before[name])
			}
		}
	}
}

func named(t *testing.T, spec *v1alpha1.NodeLayersSpec) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, text := range spec.Images {
		image, err := v1alpha1.ParseNodeImage(text, len(spec.Layers))
		if err != nil {
			t.Fatal(err)
		}
		layers := []string{}
		for _, place := range image.Layers {
			layers = append(layers, spec.Layers[place])
		}
		all[strings.Join(image.Names, " ")] = layers
	}
	return all
}

func TestSpecPrefers(t *testing.T) {
	c := &Contents{Images: []Image{
		{Names: []string{"quay.io/large:1"}, Layers: []v1alpha1.ImageLayer{layer("large", 1_000_000_000)}},
		{Names: []string{"quay.io/small:1"}, Layers: []v1alpha1.ImageLayer{layer("small", 1_000)}},
		{Names: []string{"quay.io/unknown:1"}},
	}}
	for limit, want := range map[int][]string{
		1000: {"0 quay.io/large:1", "1 quay.io/small:1", "- quay.io/unknown:1"},
		240:  {"0 quay.io/large:1", "1 quay.io/small:1"},
		130:  {"0 quay.io/large:1"},
		10:   {},
	} {
		if spec := c.Spec(0, limit); !slices.Equal(spec.Images, want) {
			t.Errorf("%d bytes: %q, want %q", limit, spec.Images, want)
		}
	}
}

func TestSmallerRefusesNonsense(t *testing.T) {
	for _, spec := range []*v1alpha1.NodeLayersSpec{{Layers: []string{"x"}}, {Images: []string{"0 a"}}} {
		if _, err := Smaller(spec, 1000); err == nil {
			t.Errorf("%+v was taken", spec)
		}
	}
}

// FuzzSpec: whatever is on a node, the lists are valid and fit.
func FuzzSpec(f *testing.F) {
	f.Add("quay.io/a:1", digest("a"), int64(5), int64(2), 300, true)
	f.Add("a b", "sha256:", int64(-1), int64(0), 0, false)
	f.Fuzz(func(t *testing.T, name, of string, bytes, least int64, limit int, chains bool) {
		limit = min(max(limit, 6), 1<<17)
		c := &Contents{Runtime: name, InChains: chains, Images: []Image{
			{Names: []string{name, of}, Layers: []v1alpha1.ImageLayer{{Digest: of, Size: bytes}, layer("b", 7)}},
			{Names: []string{of, "quay.io/b:1"}, Layers: []v1alpha1.ImageLayer{layer("b", bytes)}},
		}}
		spec := c.Spec(min(max(least, 0), v1alpha1.MaxLayerBytes), limit)
		object := &v1alpha1.NodeLayers{Spec: *spec}
		object.Spec.RenewSeconds = 1
		if errs := object.Validate(); len(errs) > 0 {
			t.Error(errs)
		}
		if !slices.IsSorted(spec.Layers) {
			t.Errorf("%q", spec.Layers)
		}
		if got := size(t, spec); got > limit {
			t.Errorf("%d bytes, at most %d", got, limit)
		}
	})
}

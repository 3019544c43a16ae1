package index

import (
	"reflect"
	"testing"

	"github.com/layer-locality/layer-locality/imageref"
)

func TestInventory(t *testing.T) {
	x := newIndex("n1", "n2", "n3")
	withoutLayers := Image{Names: []string{"quay.io/bare:1"}, SizeBytes: 7, Compressed: true}
	x.SetImages("status", "n1", []Image{image("ab", "quay.io/a:1", "quay.io/also:1"), image("ac", "quay.io/c:1"), withoutLayers})
	x.SetImages("again", "n1", []Image{image("ab", "quay.io/a:1", "quay.io/also:1")}) // the same, from another source
	x.SetImages("status", "n2", []Image{image("ab", "quay.io/a:1", "quay.io/also:1")})

	if got, want := x.Sum("n1"), (Sum{Images: 3, Layers: 3, Bytes: sum("abc") + 7, ElsewhereBytes: sum("ab")}); got != want {
		t.Errorf("n1: %+v, want %+v", got, want)
	}
	if got, want := x.Sum("n2"), (Sum{Images: 1, Layers: 2, Bytes: sum("ab"), ElsewhereBytes: sum("ab")}); got != want {
		t.Errorf("n2: %+v, want %+v", got, want)
	}
	if x.Sum("n3") != (Sum{}) || x.Sum("gone") != (Sum{}) || x.NodeImages("gone") != nil {
		t.Error("something on nodes that have nothing")
	}
	found := 0
	for _, image := range x.NodeImages("n1") {
		switch {
		case image.Report == Report{"status", false}:
			if len(image.Layers) != 1 || image.Layers[0].Size != 7 || !reflect.DeepEqual(image.Names, []imageref.Canonical{"quay.io/bare:1"}) {
				t.Errorf("%+v", image)
			}
			found++
		case image.Report == Report{"status", true} && image.Names[0] == "quay.io/a:1":
			if len(image.Names) != 2 || image.Layers[0].Size+image.Layers[1].Size != sum("ab") {
				t.Errorf("%+v", image)
			}
			found++
		}
	}
	if found != 2 {
		t.Errorf("%+v", x.NodeImages("n1"))
	}
	a := image("a").Layers[0].Digest
	if x.Holders(a) != 2 || x.Holders(image("c").Layers[0].Digest) != 1 || x.Holders("none") != 0 {
		t.Error("wrong numbers of nodes")
	}
	again := image("ab", "quay.io/a:1") // with another size, as another runtime states it
	again.SizeBytes++
	x.SetImages("status", "n3", []Image{again})
	usages, images := x.Usages()
	if len(usages) != 3 || len(images) != 2 {
		t.Fatalf("%+v of %v", usages, images)
	}
	for _, u := range usages {
		wantNodes, wantImages := 3, 1
		switch u.Digest {
		case a:
			wantImages = 2
		case image("c").Layers[0].Digest:
			wantNodes = 1
		}
		if u.Nodes != wantNodes || len(u.Images) != wantImages {
			t.Errorf("%+v, want %d nodes and %d images", u, wantNodes, wantImages)
		}
	}
	x.SetNode("another", amd64) // nothing is locked any longer
}

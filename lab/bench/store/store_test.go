package store

import "testing"

func TestLayers(t *testing.T) {
	for count := 1; count <= 30; count++ {
		a, b, c := layersOf(3, count), layersOf(3+stacks, count), layersOf(4, count)
		if len(a) != count || len(b) != count {
			t.Fatalf("%d layers wanted, got %d and %d", count, len(a), len(b))
		}
		if a[count-1].Name == b[count-1].Name {
			t.Errorf("%d layers: two images have the same last layer %s", count, a[count-1].Name)
		}
		if count >= 2 && a[0].Name != b[0].Name {
			t.Errorf("%d layers: images of one base share none of it: %s, %s", count, a[0].Name, b[0].Name)
		}
		if a[0].Name == c[0].Name {
			t.Errorf("%d layers: images of different bases share %s", count, a[0].Name)
		}
	}
}

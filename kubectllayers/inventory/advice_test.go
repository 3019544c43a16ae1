package inventory

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/kubectllayers/collect"
	"github.com/layer-locality/layer-locality/scheduler/imagemanifests"
	"github.com/layer-locality/layer-locality/scheduler/nodelayers"
)

// advised returns an Inventory of agents that hold images, by node, whose manifests are known.
func advised(t *testing.T, images map[string][]v1alpha1.ImageLayer, on map[string][]string) *Inventory {
	t.Helper()
	c := &collect.Cluster{Agents: map[string]collect.Agent{}, Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic(), Now: time.Now(), AllNodes: true}
	i := 0
	for name, layers := range images {
		manifest(t, c, name, fmt.Sprintf("%064x", 1000+i)[63:], layers...)
		i++
	}
	for name, names := range on {
		c.Nodes = append(c.Nodes, node(name))
		var all []held
		for _, image := range names {
			all = append(all, held{image, images[image]})
		}
		agent(c, name, c.Now, all...)
	}
	known, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return known
}

func find(all []Advice, kind AdviceKind) (found []Advice) {
	for _, a := range all {
		if a.Kind == kind {
			found = append(found, a)
		}
	}
	return found
}

// What a common base is said to save is what nodes hold less once the images are built on it.
func TestCommonBaseIsWhatItSays(t *testing.T) {
	rnd := rand.New(rand.NewPCG(55, 3))
	for round := range 50 {
		// Three bases that are alike, one that is not, and images on each.
		bases := [][]v1alpha1.ImageLayer{
			{layer("1", 60*mb), layer("2", 10*mb)}, {layer("3", 61*mb), layer("4", 9*mb)}, {layer("5", 71*mb), layer("6", mb)}, {layer("7", 20*mb)},
		}
		images, of, on := map[string][]v1alpha1.ImageLayer{}, map[string]int{}, map[string][]string{}
		for i := range 8 {
			name := fmt.Sprintf("quay.io/app-%d:1", i)
			of[name] = i / 2
			images[name] = append(append([]v1alpha1.ImageLayer{}, bases[i/2]...), layer(string("abcdef89"[i]), int64(1+i)*mb))
		}
		for n := range 6 {
			for name := range images {
				if rnd.IntN(3) == 0 || len(on[fmt.Sprint("n", n)]) == 0 {
					on[fmt.Sprint("n", n)] = append(on[fmt.Sprint("n", n)], name)
				}
			}
		}
		held := func(i *Inventory) (sum int64) {
			for name := range on {
				sum += i.known.Index().Sum(name).Bytes
			}
			return sum
		}
		before := advised(t, images, on)
		found := find(before.Advise(), CommonBase)
		if len(found) == 0 {
			continue // chance put too few on nodes
		}
		a := found[0]
		target := -1
		for i, layers := range bases {
			if layers[0].Digest == a.About {
				target = i
			}
		}
		if len(found) > 1 || target < 0 || target == 3 {
			t.Fatalf("%+v", found)
		}
		rebased := map[string][]v1alpha1.ImageLayer{}
		alone := map[int]int{}
		for name := range images {
			if len(before.known.Index().NodesWith(before.known.Names(name))) > 0 {
				alone[of[name]]++
			}
		}
		for name, layers := range images {
			base := bases[target]
			from := bases[of[name]]
			if alone[of[name]] == 1 {
				from = from[:1] // where the base of one image ends is not known
			}
			if alone[target] == 1 {
				base = base[:1]
			}
			if of[name] == target || of[name] == 3 {
				base = from
			}
			rebased[name] = append(append([]v1alpha1.ImageLayer{}, base...), layers[len(from):]...)
		}
		if saved := held(before) - held(advised(t, rebased, on)); alone[0] != 1 && alone[1] != 1 && alone[2] != 1 && saved != a.SavedBytes {
			t.Errorf("round %d: %d bytes saved, predicted %d: %+v", round, saved, a.SavedBytes, a)
		}
	}
}

// The base to build on is the one that saves most, and one that saves nothing is not proposed.
func TestCommonBaseSaves(t *testing.T) {
	images := map[string][]v1alpha1.ImageLayer{"quay.io/small:1": {layer("1", 100*mb), layer("a", mb)}, "quay.io/large:1": {layer("2", 104*mb), layer("b", mb)}}
	on := map[string][]string{"n1": {"quay.io/small:1"}, "n2": {"quay.io/large:1"}, "n3": {"quay.io/large:1"}}
	found := find(advised(t, images, on).Advise(), CommonBase)
	if len(found) != 1 || found[0].About != layer("1", 0).Digest || found[0].SavedBytes != 2*4*mb || found[0].PullBytes != 104*mb || !strings.HasSuffix(found[0].Words, "build 1 images on that of quay.io/small:1") {
		t.Errorf("%+v", found)
	}
	images["quay.io/large:1"][0].Size = 100 * mb
	if found := find(advised(t, images, on).Advise(), CommonBase); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	on["n1"] = append(on["n1"], "quay.io/large:1")
	if found := find(advised(t, images, on).Advise(), CommonBase); len(found) != 1 || found[0].SavedBytes != 100*mb || found[0].About != layer("2", 0).Digest {
		t.Errorf("%+v", found)
	}
}

// Versions that each bring a large layer on top, tags with several contents, and full lists.
func TestAdvise(t *testing.T) {
	model := func(letter string, size int64) []v1alpha1.ImageLayer {
		return []v1alpha1.ImageLayer{layer("1", 60*mb), layer("2", mb), layer(letter, size), layer("3", mb)}
	}
	images := map[string][]v1alpha1.ImageLayer{"quay.io/model:1": model("a", 100*mb), "quay.io/model:2": model("b", 120*mb), "quay.io/small:1": {layer("1", 60*mb), layer("c", mb)}, "quay.io/small:2": {layer("1", 60*mb), layer("d", mb)}, "quay.io/once:1": {layer("1", 60*mb), layer("e", 300*mb)}}
	on := map[string][]string{"n1": {"quay.io/model:1", "quay.io/model:2", "quay.io/small:1", "quay.io/small:2", "quay.io/once:1"}, "n2": {"quay.io/model:2"}}
	all := advised(t, images, on).Advise()
	if len(all) != 1 || all[0].Kind != LargeOnTop || all[0].About != "quay.io/model" || all[0].PullBytes != 110*mb || len(all[0].Images) != 2 || !strings.Contains(all[0].Words, "each of 2 versions") || !strings.Contains(all[0].Words, "such as layer 3:") {
		t.Errorf("%+v", all)
	}
	c := cluster(t)
	agent(c, "other-agent", c.Now, held{"quay.io/first:1", []v1alpha1.ImageLayer{base, second}})
	known, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	all = known.Advise()
	if tags := find(all, MovingTag); len(tags) != 1 || tags[0].About != "quay.io/first:1" || !strings.Contains(tags[0].Words, "2 contents under this tag for linux/amd64") {
		t.Errorf("%+v", all)
	}
	if lists := find(all, FullLists); len(lists) != 1 || lists[0].About != "nodes: 1" || !strings.Contains(lists[0].Words, "full and others list 50 images") {
		t.Errorf("%+v", all)
	}
	if known, err = New(t.Context(), &collect.Cluster{Reports: nodelayers.NewStatic(), Manifests: imagemanifests.NewStatic()}); err != nil || known.Advise() == nil || len(known.Advise()) > 0 {
		t.Errorf("%+v, %v", known.Advise(), err)
	}
}

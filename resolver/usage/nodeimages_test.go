package usage

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// An image counts once for each node, however often the node changes what it lists.
func TestNodeImagesIsCountedOnce(t *testing.T) {
	const a, b, c = "reg/a", "reg/b", "reg/c"
	h := NewNodeImages()
	for i, step := range []struct {
		node        string
		holds       []string
		added, gone []string
	}{
		{"n1", []string{a, b}, []string{a, b}, nil},
		{"n1", []string{a, b}, nil, nil},
		{"n1", []string{a, c}, []string{c}, []string{b}},
		{"n2", []string{c}, nil, nil},
		{"n1", nil, nil, []string{a}},
		{"n2", nil, nil, []string{c}},
	} {
		added, gone := h.Set(step.node, step.holds)
		slices.Sort(added) // in any order
		if !slices.Equal(added, step.added) || !slices.Equal(gone, step.gone) {
			t.Errorf("step %d: %q came and %q went, want %q and %q", i, added, gone, step.added, step.gone)
		}
	}
	if len(h.nodes) != 0 || len(h.counts) != 0 {
		t.Errorf("left: %v %v", h.nodes, h.counts)
	}
}

// What is on most nodes goes first, whatever came first, and what was handed over before
// there were queues is not lost.
func TestNodeImagesOrder(t *testing.T) {
	h := NewNodeImages()
	image := func(letter string) Image { return one(byDigest("quay.io/x", letter)) }
	for node, letters := range map[string]string{"n1": "abcd", "n2": "bcd", "n3": "cd", "n4": "d"} {
		var references []string
		for _, letter := range letters {
			references = append(references, image(string(letter)).Key)
		}
		h.Set(node, references)
	}
	if got := keys(h.Want(image("a"))); !slices.Equal(got, []string{image("a").Key}) {
		t.Errorf("handed over: %q", got)
	}
	h.Reset() // of Start
	for _, letter := range []string{"b", "a", "d", "c"} {
		h.addLocked(image(letter))
	}
	h.Set("n5", []string{image("a").Key}) // now a is on more nodes than b
	h.Set("n2", []string{image("c").Key, image("d").Key})
	var order []string
	for _, image := range h.Want(image("a")) {
		order = append(order, image.Key)
	}
	for i := 0; i < len(order); i++ {
		for _, image := range h.Done(one(order[i])) {
			order = append(order, image.Key)
		}
	}
	var want []string
	for _, letter := range []string{"d", "c", "a", "b"} {
		want = append(want, image(letter).Key)
	}
	if !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
	if len(h.waiting) != 0 {
		t.Errorf("left: %v", h.waiting)
	}
	if next := h.Done(image("a")); next != nil {
		t.Errorf("an image that was not asked for makes room for %v", next)
	}
	if added, gone := h.Set("n6", []string{image("d").Key, image("e").Key}); !slices.Equal(added, []string{image("e").Key}) || gone != nil {
		t.Errorf("new on a node: %q, gone %q", added, gone)
	}
	if added, gone := h.Set("n6", nil); added != nil || !slices.Equal(gone, []string{image("e").Key}) {
		t.Errorf("then new %q, gone %q", added, gone)
	}
}

// Whatever nodes hold and whatever ends in whatever order: those that are handed over are on
// the most nodes of all that wait.
func TestNodeImagesAnyOrder(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		h := NewNodeImages()
		nodes, waiting, asked := map[string][]string{}, map[string]bool{}, map[string]bool{}
		on := func(reference string) (n int) {
			for _, holds := range nodes {
				if slices.Contains(holds, reference) {
					n++
				}
			}
			return n
		}
		// next is what has to be handed over.
		next := func() (handed []string) {
			for len(asked) < MaxAsked && len(waiting) > 0 {
				first := slices.MinFunc(slices.Collect(maps.Keys(waiting)), func(a, b string) int {
					return cmp.Or(on(b)-on(a), strings.Compare(a, b))
				})
				delete(waiting, first)
				asked[first] = true
				handed = append(handed, first)
			}
			return handed
		}
		for step := range 200 {
			reference := fmt.Sprintf("quay.io/x@sha256:%064x", random.IntN(20))
			var got, want []string
			switch random.IntN(3) {
			case 0:
				node := fmt.Sprint("n", random.IntN(6))
				nodes[node] = nil
				for i := range 20 {
					if random.IntN(3) == 0 {
						nodes[node] = append(nodes[node], fmt.Sprintf("quay.io/x@sha256:%064x", i))
					}
				}
				h.Set(node, nodes[node])
			case 1:
				got = keys(h.Want(one(reference)))
				waiting[reference] = !asked[reference]
				maps.DeleteFunc(waiting, func(_ string, waits bool) bool { return !waits })
				want = next()
			default:
				got = keys(h.Done(one(reference)))
				if waiting[reference] || asked[reference] {
					delete(waiting, reference)
					delete(asked, reference)
					want = next()
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: handed over %q, want %q", seed, step, got, want)
			}
		}
	}
}

// Images beyond MaxNodeImages are not asked for before others leave.
func TestNodeImagesAreBounded(t *testing.T) {
	references := make([]string, MaxNodeImages+1)
	for i := range references {
		references[i] = fmt.Sprintf("quay.io/x@sha256:%064x", i)
	}
	h := NewNodeImages()
	const each = 500 // of a node
	room := 0
	for i := 0; i < MaxNodeImages; i += each {
		added, _ := h.Set(fmt.Sprint("of-", i), references[i:i+each])
		room += len(added)
	}
	if room != MaxNodeImages {
		t.Errorf("%d images are new, want %d", room, MaxNodeImages)
	}
	if added, _ := h.Set("n2", references[MaxNodeImages:]); len(added) != 0 {
		t.Errorf("%d more are new", len(added))
	}
	h.Set("n3", references[MaxNodeImages:])
	if added, gone := h.Set("of-0", references[2:each]); len(added) != 1 || added[0] != references[MaxNodeImages] || len(gone) != 2 {
		t.Errorf("two have left: %d are new, %d gone", len(added), len(gone))
	}
	// One that was never asked for has nothing to be dropped.
	h.Set("n4", []string{references[0], references[1]})
	if added, gone := h.Set("n4", nil); len(added) != 0 || !slices.Equal(gone, references[:1]) && !slices.Equal(gone, references[1:2]) {
		t.Errorf("of two, one had room: %d are new, %d gone", len(added), len(gone))
	}
}

// An image that no node holds any longer does not wait either, however long the others take.
func TestNodeImageThatNoLongerWaits(t *testing.T) {
	h := NewNodeImages()
	image := func(i int) Image { return one(fmt.Sprintf("quay.io/x@sha256:%064x", i)) }
	for i := range 100 {
		h.Set("n1", []string{image(i).Key})
		h.Want(image(i))
		if i >= MaxAsked {
			h.Done(image(i))
		}
	}
	if q := h.waiting["quay.io"]; len(q.images) != MaxAsked || len(q.waiting) != 0 {
		t.Errorf("%d images, of which %d wait", len(q.images), len(q.waiting))
	}
}

// The image that would be next no longer is when it is gone from nodes.
func TestNodeImagesOrderFollowsNodes(t *testing.T) {
	h := NewNodeImages()
	image := func(letter string) Image { return one(byDigest("quay.io/x", letter)) }
	h.Set("n1", []string{image("a").Key, image("b").Key})
	h.Set("n2", []string{image("a").Key, image("b").Key})
	h.Set("n3", []string{image("a").Key})
	for _, letter := range []string{"a", "b"} {
		h.addLocked(image(letter))
	}
	h.Set("n3", nil)
	h.Set("n2", []string{image("b").Key})
	var order []string
	for _, image := range h.Want(image("a")) {
		order = append(order, image.Key)
	}
	if want := []string{image("b").Key, image("a").Key}; !slices.Equal(order, want) {
		t.Errorf("in the order %q, want %q", order, want)
	}
}

func byDigest(repository, letter string) string {
	return repository + "@sha256:" + strings.Repeat(letter, 64)
}

func one(reference string) Image { return NewImage([]string{reference}) }

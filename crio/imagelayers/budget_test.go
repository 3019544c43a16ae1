package imagelayers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"go.podman.io/image/v5/types"
)

func wireSize(images []*Layers) int {
	total := 0
	for _, image := range images {
		total += image.WireSize()
	}

	return total
}

func annotations(images []*Layers) []map[string]string {
	all := make([]map[string]string, 0, len(images))
	for _, image := range images {
		all = append(all, maps.Clone(image.Spec().GetAnnotations()))
	}

	return all
}

func TestBudgetPassesOnWhatFits(t *testing.T) {
	images := []*Layers{FromManifest(blobs("x", 3)), nil, FromManifest(blobs("y", 4))}

	for _, limit := range []int{wireSize(images), DefaultBudget} {
		if got := NewBudget(limit).Apply(images, 0); !slices.Equal(got, images) {
			t.Errorf("limit %d: got %v, want the same values", limit, annotations(got))
		}
	}

	if got := NewBudget(0).Apply(nil, 0); len(got) != 0 {
		t.Errorf("no images: got %v", got)
	}
}

// A message is never larger than clients take because of layers.
func TestBudgetIsWhatTheMessageLeaves(t *testing.T) {
	images := []*Layers{FromManifest(blobs("x", 40))}
	size := wireSize(images)

	for other, want := range map[int]bool{
		0: true, messageLimit - messageMargin - size: true, messageLimit - messageMargin - size + 1: false,
	} {
		got := NewBudget(DefaultBudget).Apply(images, other)
		if all := wireSize(got) == size; all != want || other+wireSize(got) > messageLimit-messageMargin {
			t.Errorf("beside %d bytes, %d of %d bytes of layers are reported", other, wireSize(got), size)
		}
	}

	for _, other := range []int{messageLimit, 1 << 30} {
		if got := wireSize(NewBudget(DefaultBudget).Apply(images, other)); got != 0 {
			t.Errorf("beside %d bytes, %d bytes of layers are reported", other, got)
		}
	}
}

func TestBudgetDropsTheSmallestLayersEverywhere(t *testing.T) {
	// b is in all images and smaller than what else is there, except a.
	images := []*Layers{
		FromManifest([]types.BlobInfo{blob(digestA, 1), blob(digestB, 20)}),
		FromManifest([]types.BlobInfo{blob(digestB, 20), blob(digestC, 300)}),
		nil,
		FromManifest([]types.BlobInfo{blob(digestB, 20)}),
		FromManifest([]types.BlobInfo{blob(digestC, 300)}),
	}
	before := annotations(images)
	c := map[string]string{key(digestC): "300"}
	b := map[string]string{key(digestB): "20"}
	bc := map[string]string{key(digestB): "20", key(digestC): "300"}

	for _, tc := range []struct {
		limit int
		want  []map[string]string
	}{
		{wireSize(images) - 1, []map[string]string{b, bc, nil, b, c}},
		{entryWireSize(key(digestB), "20")*3 + entryWireSize(key(digestC), "300")*2, []map[string]string{b, bc, nil, b, c}},
		{entryWireSize(key(digestB), "20")*3 + entryWireSize(key(digestC), "300")*2 - 1, []map[string]string{nil, c, nil, nil, c}},
		{1, make([]map[string]string, len(images))},
		{0, make([]map[string]string, len(images))},
		{-1, make([]map[string]string, len(images))},
	} {
		got := NewBudget(tc.limit).Apply(images, 0)
		for i := range images {
			if !maps.Equal(got[i].Spec().GetAnnotations(), tc.want[i]) || (got[i] == nil) != (tc.want[i] == nil) {
				t.Errorf("limit %d, image %d: got %v, want %v", tc.limit, i, got[i].Spec().GetAnnotations(), tc.want[i])
			}
		}

		if len(got[4].Spec().GetAnnotations()) > 0 && got[4] != images[4] {
			t.Errorf("limit %d: an image that loses nothing was copied", tc.limit)
		}
	}

	if !slices.EqualFunc(before, annotations(images), maps.Equal) {
		t.Errorf("the images changed from %v to %v", before, annotations(images))
	}
}

func TestBudgetTakesTheLargestOfContradictorySizes(t *testing.T) {
	images := []*Layers{
		FromManifest([]types.BlobInfo{blob(digestA, 1000)}),
		FromManifest([]types.BlobInfo{blob(digestA, 1), blob(digestB, 500)}),
	}
	got := NewBudget(wireSize(images)-1).Apply(images, 0)

	if want := []map[string]string{{key(digestA): "1000"}, {key(digestA): "1"}}; !slices.EqualFunc(annotations(got), want, maps.Equal) {
		t.Errorf("got %v, want %v", annotations(got), want)
	}
}

// TestBudgetProperties compares with what is promised for arbitrary lists.
func TestBudgetProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))

	for round := range 200 {
		images := make([]*Layers, random.IntN(20))
		for i := range images {
			infos := make([]types.BlobInfo, random.IntN(10))
			for j := range infos {
				n := random.IntN(40)
				infos[j] = blob(blobs("", 40)[n].Digest, int64(n*n%17)) // equal sizes occur
			}

			images[i] = FromManifest(infos)
		}

		limit := random.IntN(wireSize(images) + 100)
		kept := NewBudget(limit).Apply(images, 0)

		if wireSize(kept) > limit {
			t.Fatalf("round %d: %d bytes, the limit is %d", round, wireSize(kept), limit)
		}

		keptKeys := map[string]struct{}{}
		for _, image := range kept {
			maps.Copy(keptKeys, image.keySet())
		}

		for i, image := range images {
			for k := range image.Spec().GetAnnotations() {
				_, everywhere := keptKeys[k]
				if _, here := kept[i].Spec().GetAnnotations()[k]; here != everywhere {
					t.Fatalf("round %d, image %d: %s is reported here %v, elsewhere %v", round, i, k, here, everywhere)
				}
			}
		}

		// Nothing depends on the order of images.
		order := random.Perm(len(images))
		shuffled := make([]*Layers, len(images))

		for i, j := range order {
			shuffled[i] = images[j]
		}

		for i, again := range NewBudget(limit).Apply(shuffled, 0) {
			if !maps.Equal(again.Spec().GetAnnotations(), kept[order[i]].Spec().GetAnnotations()) {
				t.Fatalf("round %d: the result depends on the order of images", round)
			}
		}
	}
}

func (l *Layers) keySet() map[string]struct{} {
	set := map[string]struct{}{}
	for k := range l.Spec().GetAnnotations() {
		set[k] = struct{}{}
	}

	return set
}

// The documentation states these numbers.
func TestBounds(t *testing.T) {
	if DefaultBudget != 8388608 || MaxPerImage != 512 {
		t.Errorf("a budget of %d bytes, at most %d layers an image", DefaultBudget, MaxPerImage)
	}
}

func TestBudgetLogsTransitions(t *testing.T) {
	logs := logrustest.NewGlobal()
	t.Cleanup(func() { logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{}) })

	few, many := []*Layers{FromManifest(blobs("x", 20)[18:])}, []*Layers{FromManifest(blobs("x", 20))}
	budget := NewBudget(wireSize(few))

	for _, step := range []struct {
		images []*Layers
		level  logrus.Level
		log    string
	}{
		{images: few},
		{many, logrus.WarnLevel, "leaving out the 18 smallest layers (up to 18 bytes each)"},
		{images: many},
		{images: many},
		{few, logrus.InfoLevel, "fit into one list again"},
		{images: few},
		{many, logrus.WarnLevel, SwitchEnv + "=off"},
	} {
		logs.Reset()
		budget.Apply(step.images, 0)

		entries := logs.AllEntries()
		if step.log == "" {
			if len(entries) != 0 {
				t.Errorf("unexpected log: %q", entries[0].Message)
			}

			continue
		}

		if len(entries) != 1 || entries[0].Level != step.level || !strings.Contains(entries[0].Message, step.log) {
			t.Errorf("logged %v, want one %s with %q", entries, step.level, step.log)
		}
	}
}

func BenchmarkBudget(b *testing.B) {
	logrus.SetLevel(logrus.ErrorLevel)
	b.Cleanup(func() { logrus.SetLevel(logrus.InfoLevel) })

	images := make([]*Layers, 5000)
	for i := range images {
		images[i] = FromManifest(blobs(fmt.Sprint(i), 40))
	}

	for name, limit := range map[string]int{"fits": 1 << 30, "over": DefaultBudget} {
		b.Run(name, func(b *testing.B) {
			budget := NewBudget(limit)
			for b.Loop() {
				budget.Apply(images, 0)
			}
		})
	}
}

package imagemanifests

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
)

// images is how many ImageManifests a large cluster has. Each has ten layers;
// half of them come from a hundred common base images.
const images = 50_000

func load(b *testing.B) *Source {
	b.Helper()
	s := newSource()
	for i := range images {
		m := manifest(fmt.Sprint(i), "linux/amd64", "", reference(tag(i), fmt.Sprint("index", i), i%60))
		for l := range 10 {
			name := fmt.Sprintf("base%d/%d", i%100, l)
			if l >= 5 {
				name = fmt.Sprintf("own%d/%d", i, l)
			}
			m.Spec.Layers = append(m.Spec.Layers, v1alpha1.ImageLayer{Digest: sha(name), Size: int64(l) << 20})
		}
		if err := s.apply(m); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func tag(i int) string {
	return fmt.Sprintf("registry.example.com/team%d/app%d:v1.2.%d", i%50, i/20, i%20)
}

// BenchmarkSource measures what 50,000 images cost: the memory, the time of a
// look-up in the scheduling cycle, and the time to update an object that was
// confirmed.
func BenchmarkSource(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := load(b)
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	mib := float64(after.HeapAlloc-before.HeapAlloc) / (1 << 20)
	names := make([]imageref.Canonical, 1000)
	for i := range names {
		names[i] = imageref.Canonical(tag(i * images / len(names)))
	}

	b.Run("Manifests", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if s.Manifests(names[i%len(names)]) == nil {
				b.Fatal("unknown")
			}
			i++
		}
		b.ReportMetric(mib, "MiB")
	})
	b.Run("Confirmed", func(b *testing.B) {
		b.ReportAllocs()
		m := manifest("0", "linux/amd64", "abcdefghij", reference(tag(0), "index0", 0))
		for i := 1; b.Loop(); i++ {
			m.Status.References[0] = reference(tag(0), "index0", i)
			if err := s.apply(m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

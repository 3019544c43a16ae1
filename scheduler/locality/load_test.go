package locality_test

import (
	"testing"

	"k8s.io/utils/ptr"

	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

func TestBalance(t *testing.T) {
	args := args(func(a *configv1.LayerLocalityArgs) {
		a.LoadPenalty, a.NoRequestPenalty = ptr.To[int32](8), ptr.To[int32](2)
	})
	// Of 10 CPUs, 60 % and 30 % are requested, by two pods and one; the second node has
	// two containers without a request, which count as 100m each.
	busy, other := load(6000, 6000, 10_000, 2), load(3000, 3200, 10_000, 1)
	var loads locality.Loads
	loads.Add(busy)
	loads.Add(other)
	loads.Add(load(0, 0, 10_000, 0))
	for _, test := range []struct {
		request           int64 // the mean is (6000 + 3200) / 3
		penalty, ofTheOne float64
	}{
		{request: 9200, penalty: 8 * 3, ofTheOne: -8*3*(60-30) + 2*2./3},
		{request: 100_000, penalty: 8 * 4, ofTheOne: -8*4*(60-30) + 2*2./3},
		{request: 1, penalty: 8 * 0.25, ofTheOne: -8*0.25*(60-30) + 2*2./3},
	} {
		b := loads.BalanceFor(locality.Resources{MilliCPU: test.request}, 0, args)
		if !near(b.LoadPenalty, test.penalty) || b.NoRequestPenalty != 2 || !near(b.MeanPercent, 30) || !near(b.MeanWithoutRequest, 2./3) {
			t.Errorf("request %d: %+v, want a penalty of %v", test.request, b, test.penalty)
		}
		if got := b.LoadPoints(busy); !near(got, test.ofTheOne) {
			t.Errorf("request %d: the busiest node loses %v, want %v", test.request, got, test.ofTheOne)
		}
		// As much CPU as the mean, but more containers without a request.
		if got, want := b.LoadPoints(other), -2*(2-2./3); !near(got, want) {
			t.Errorf("request %d: the second node loses %v, want %v", test.request, got, want)
		}
		if got := b.LoadPoints(locality.Load{}); got != 0 {
			t.Errorf("request %d: an idle node loses %v", test.request, got)
		}
	}
}

// The first pod of a cluster, and a node that does not state its CPU.
func TestBalanceOfNothing(t *testing.T) {
	args := args()
	var none locality.Loads
	none.Add(load(0, 0, 0, 0))
	b := none.BalanceFor(locality.Resources{MilliCPU: 100}, 0, args)
	if b.LoadPenalty != float64(args.LoadPenalty) || b.MeanPercent != 0 {
		t.Errorf("%+v", b)
	}
	if got := b.LoadPoints(load(500, 500, 0, 1)); got != 0 {
		t.Errorf("a node without CPU loses %v", got)
	}
}

// load is that of a node with pods that request CPU only.
func load(requested, withDefaults, allocatable int64, pods int) locality.Load {
	return locality.NewLoad(locality.Resources{MilliCPU: requested, Pods: int64(pods)}, withDefaults, locality.Resources{MilliCPU: allocatable})
}

// Of CPU and memory, the one of which more is requested counts, for nodes and for pods.
func TestBalanceOfMemory(t *testing.T) {
	args := args(func(a *configv1.LayerLocalityArgs) { a.LoadPenalty = ptr.To[int32](2) })
	const gib = 1 << 30
	of := func(milliCPU, memory int64) locality.Load {
		return locality.NewLoad(locality.Resources{MilliCPU: milliCPU, Memory: memory, Pods: 1}, milliCPU, locality.Resources{MilliCPU: 10_000, Memory: 100 * gib})
	}
	memory, cpu := of(1000, 50*gib), of(3000, 10*gib)
	if memory.Percent != 50 || cpu.Percent != 30 {
		t.Fatalf("%v and %v percent, want 50 of memory and 30 of CPU", memory.Percent, cpu.Percent)
	}
	var loads locality.Loads
	loads.Add(memory)
	loads.Add(cpu)
	for _, test := range []struct {
		name    string
		request locality.Resources
		share   float64 // the means are 2000m and 30 GiB
	}{
		{"CPU", locality.Resources{MilliCPU: 4000, Memory: gib}, 2},
		{"memory", locality.Resources{MilliCPU: 1, Memory: 45 * gib}, 1.5},
		{"little of both", locality.Resources{MilliCPU: 1, Memory: 1}, 0.25},
	} {
		b := loads.BalanceFor(test.request, 0, args)
		if want := -2 * test.share * 10; !near(b.LoadPoints(memory), want) || b.LoadPoints(cpu) != 0 {
			t.Errorf("a pod that requests %s: %v and %v points, want %v and 0", test.name, b.LoadPoints(memory), b.LoadPoints(cpu), want)
		}
	}
	if huge := of(1, 1<<62); huge.Percent < 1e9 || loads.BalanceFor(locality.Resources{Memory: 1 << 62}, 0, args).LoadPenalty != 8 {
		t.Errorf("a huge request: %+v", huge)
	}
}

// A node full of small pods is busy, however little they request, and a small pod pays as much
// for it as a large one.
func TestBalanceOfPods(t *testing.T) {
	args := args(func(a *configv1.LayerLocalityArgs) { a.LoadPenalty = ptr.To[int32](2) })
	of := func(milliCPU, pods int64) locality.Load {
		return locality.NewLoad(locality.Resources{MilliCPU: milliCPU, Pods: pods}, milliCPU, locality.Resources{MilliCPU: 10_000, Pods: 100})
	}
	many, few := of(500, 50), of(500, 10)
	var loads locality.Loads
	loads.Add(many)
	loads.Add(few)
	for _, request := range []int64{1, 17, 10_000} { // the mean is 16.7m
		b := loads.BalanceFor(locality.Resources{MilliCPU: request}, 0, args)
		if got, want := b.LoadPoints(many), -2*(50-30.); !near(got, want) || b.LoadPoints(few) != 0 {
			t.Errorf("request %d: %v and %v points, want %v and 0", request, got, b.LoadPoints(few), want)
		}
	}
	// What costs more counts: 60 % of CPU, or 50 % of the pods.
	loads.Add(of(6000, 50))
	b := loads.BalanceFor(locality.Resources{MilliCPU: 10_000}, 0, args)
	if got, want := b.LoadPoints(of(6000, 50)), -2*4*(60-70/3.); !near(got, want) {
		t.Errorf("%v points, want %v for CPU", got, want)
	}
}

func near(a, b float64) bool { return a-b < 1e-4 && b-a < 1e-4 }

// Load costs a pod as many bytes whatever the size of its images: the larger they are, the fewer points.
func TestBalanceOfLargeImages(t *testing.T) {
	args := args(func(a *configv1.LayerLocalityArgs) {
		a.MinImageBytes, a.LoadPenalty, a.NoRequestPenalty = ptr.To[int64](100*mb), ptr.To[int32](8), ptr.To[int32](2)
	})
	var loads locality.Loads
	loads.Add(load(1000, 1000, 10_000, 1))
	for megabytes, share := range map[float64]float64{0: 1, 5: 1, 100: 1, 200: 0.5, 500: 0.2, 1000: 0.1, 50_000: 0.1} {
		b := loads.BalanceFor(locality.Resources{MilliCPU: 1000}, megabytes*mb, args)
		if !near(b.LoadPenalty, 8*share) || !near(b.PodPenalty, 8*share) || !near(b.NoRequestPenalty, 2*share) {
			t.Errorf("images of %v MB: %+v, want %v of all penalties", megabytes, b, share)
		}
	}
}

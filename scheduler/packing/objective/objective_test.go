package objective

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// capacity is that of the nodes of TestGolden: millicores and MiB.
var capacity = Vector{4000, 16000}

// use returns amounts as shares of the capacity.
func use(cpu, memory float64) Vector { return Vector{cpu / capacity[0], memory / capacity[1]} }

// published is how far a figure of TestGolden may be from its value: two of them are rounded
// from figures that were rounded before.
const published = 1.5e-6

// TestGolden has published figures of the objectives.
func TestGolden(t *testing.T) {
	nodes := []Vector{{1000, 2000}, {2000, 6000}, {3000, 1000}}
	var uses []Vector
	for _, n := range nodes {
		uses = append(uses, use(n[0], n[1]))
	}
	var demand Demand
	for _, c := range []struct {
		pod    Vector
		values map[Kind][]float64 // 0: no room
		scores []int64            // of BinPack, from 0 to 10
	}{
		{Vector{500, 1000}, map[Kind][]float64{
			BinPack: {.216157, .368349, .411145}, LoadBalance: {.155902, .212459, .256851}, Consolidate: {.679998, .579837, .475664}}, []int64{10, 3, 1}},
		{Vector{500, 1000}, map[Kind][]float64{
			BinPack: {.216157, .368349, .411145}, LoadBalance: {.155902, .212459, .256851}, Consolidate: {.679998, .579837, .475664}}, []int64{10, 3, 1}},
		{Vector{2000, 4000}, map[Kind][]float64{
			BinPack: {.575696, .206120, 0}, LoadBalance: {.117851, .311805, 0}, Consolidate: {.750000, .304029, 0}}, []int64{1, 10, 0}},
		{Vector{250, 8000}, map[Kind][]float64{
			BinPack: {.547660, .136001, .116788}, LoadBalance: {.179215, .206239, .230112}, Consolidate: {.639291, .589028, .537215}}, []int64{1, 10, 10}},
	} {
		demand.Add(c.pod)
		for kind, want := range c.values {
			system := NewSystem(kind, 2, uses, demand.Variability(capacity))
			var got []float64
			for i, n := range nodes {
				value := math.NaN()
				if n[0]+c.pod[0] <= capacity[0] && n[1]+c.pod[1] <= capacity[1] {
					value = system.Exchange(uses[i], use(n[0]+c.pod[0], n[1]+c.pod[1]))
				}
				got = append(got, value)
				if math.IsNaN(value) != (want[i] == 0) || math.Abs(value-want[i]) > published {
					t.Errorf("pod %v, objective %d, node %d: %.9f, want %.6f", c.pod[:2], kind, i+1, value, want[i])
				}
			}
			if kind == BinPack {
				for i, score := range Scores(got) {
					if (score*10+50)/100 != c.scores[i] {
						t.Errorf("pod %v, node %d: score %d, want %d of 10", c.pod[:2], i+1, score, c.scores[i])
					}
				}
			}
		}
	}
}

// scratch computes an objective from the formulas as they are written, from all uses.
func scratch(kind Kind, uses []Vector, demand float64) float64 {
	n := float64(len(uses))
	var mean Vector
	var covariance [Most]Vector
	for _, u := range uses {
		for i := range u {
			mean[i] += u[i] / n
		}
	}
	for _, u := range uses {
		for i := range u {
			for j := range u {
				covariance[i][j] += (u[i] - mean[i]) * (u[j] - mean[j]) / n
			}
		}
	}
	switch a := mean[0]; kind {
	case LoadBalance:
		return math.Sqrt(covariance[0][0])
	case Consolidate:
		if a <= 0 || a >= 1 {
			return 0
		}
		var sum float64
		for _, u := range uses {
			d := (a - u[0]) / a
			if u[0] > a {
				d = (u[0] - a) / (1 - a)
			}
			sum += d * d / n
		}
		return 1 - math.Sqrt(sum)
	default:
		var norm, form float64
		for i := range mean {
			norm += mean[i] * mean[i]
			for j := range mean {
				form += mean[i] * mean[j] * covariance[i][j]
			}
		}
		if norm == 0 {
			return math.Abs(demand)
		}
		return math.Abs(math.Sqrt(max(form, 0))/norm - demand)
	}
}

// draw returns the uses of n nodes, of r resources. Some are alike, empty or full.
func draw(random *rand.Rand, n, r int) []Vector {
	uses := make([]Vector, n)
	for i := range uses {
		for j := range r {
			switch random.IntN(4) {
			case 0:
				uses[i][j] = float64(random.IntN(5)) / 4
			default:
				uses[i][j] = random.Float64()
			}
		}
	}
	return uses
}

// TestExchange compares the exchange of a node's use with a computation from scratch.
func TestExchange(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 3000 {
		resources := 1 + random.IntN(Most)
		uses := draw(random, 1+random.IntN(40), resources)
		demand, kind := random.Float64(), Kind(round%3)
		system := NewSystem(kind, resources, uses, demand)
		if got, want := system.Now(), scratch(kind, uses, demand); math.Abs(got-want) > 1e-9 {
			t.Fatalf("objective %d of %v: %v, want %v", kind, uses, got, want)
		}
		for i, before := range uses {
			after := before
			for j := range after {
				if before[j] != 0 {
					after[j] += (1 - before[j]) * random.Float64()
				}
			}
			exchanged := slices.Clone(uses)
			exchanged[i] = after
			got, want := system.Exchange(before, after), scratch(kind, exchanged, demand)
			accuracy := 1e-9
			if root := map[Kind]float64{BinPack: min(math.Abs(want-demand), want+demand), LoadBalance: want, Consolidate: 1 - want}[kind]; root < 1e-6 {
				accuracy = 1e-6 // the root of what is nearly 0 has half of its digits
			}
			if math.Abs(got-want) > accuracy {
				t.Fatalf("objective %d, node %d of %v becomes %v: %v, want %v", kind, i, uses, after, got, want)
			}
			if math.IsNaN(got) || got < 0 || kind != BinPack && got > 1 {
				t.Fatalf("objective %d is %v", kind, got)
			}
		}
	}
}

// TestPermutation: the order of nodes changes no objective, and each node keeps its score.
func TestPermutation(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for round := range 300 {
		uses := draw(random, 2+random.IntN(30), 2)
		kind := Kind(round % 3)
		values := func(uses []Vector) []float64 {
			system := NewSystem(kind, 2, uses, .3)
			var all []float64
			for _, u := range uses {
				after := u
				after[0] = min(after[0]+.1, 1)
				all = append(all, system.Exchange(u, after))
			}
			return all
		}
		order := random.Perm(len(uses))
		shuffled := make([]Vector, len(uses))
		for i, j := range order {
			shuffled[i] = uses[j]
		}
		first, second := values(uses), values(shuffled)
		scores, others := Scores(first), Scores(second)
		for i, j := range order {
			if math.Abs(first[j]-second[i]) > 1e-9 || max(scores[j]-others[i], others[i]-scores[j]) > 1 {
				t.Fatalf("objective %d, node %d: %v (%d), in another order %v (%d)", kind, j, first[j], scores[j], second[i], others[i])
			}
		}
	}
}

func TestScores(t *testing.T) {
	none := math.NaN()
	for _, c := range []struct {
		objectives []float64
		want       []int64
	}{
		{nil, []int64{}}, {[]float64{.3}, []int64{100}}, {[]float64{none, none}, []int64{0, 0}},
		{[]float64{.3, .3 + 1e-12, none}, []int64{100, 100, 0}}, {[]float64{0, 1, .5}, []int64{100, 10, 55}}, {[]float64{none, .1, .2}, []int64{0, 100, 10}},
	} {
		if got := Scores(c.objectives); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.objectives, got, c.want)
		}
	}
}

// TestDemand: equal pods do not differ, whatever their size, and after many pods of another
// kind the first ones hardly count.
func TestDemand(t *testing.T) {
	var d Demand
	if d.Variability(capacity) != 0 || d.Pods() != 0 {
		t.Error("no pods differ")
	}
	for range 50 {
		d.Add(Vector{500, 1000})
	}
	if v := d.Variability(capacity); v > 1e-9 {
		t.Errorf("equal pods differ by %v", v)
	}
	d.Add(Vector{2000, 4000})
	mixed := d.Variability(capacity)
	if mixed < .1 {
		t.Errorf("pods of two sizes differ by %v", mixed)
	}
	for range 2000 {
		d.Add(Vector{2000, 4000})
	}
	if v := d.Variability(capacity); v > mixed/100 {
		t.Errorf("after 2000 equal pods, they differ by %v", v)
	}
	if v := d.Variability(Vector{}); v != 0 {
		t.Errorf("nodes without capacity: %v", v)
	}
}

// TestEmpty has no nodes.
func TestEmpty(t *testing.T) {
	for _, kind := range []Kind{BinPack, LoadBalance, Consolidate} {
		if got := NewSystem(kind, 2, nil, 0).Now(); got != 0 {
			t.Errorf("objective %d of no nodes: %v", kind, got)
		}
	}
}

func BenchmarkExchange(b *testing.B) {
	uses := draw(rand.New(rand.NewPCG(1, 1)), 5000, 2)
	for name, kind := range map[string]Kind{"BinPack": BinPack, "LoadBalance": LoadBalance, "Consolidate": Consolidate} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				system := NewSystem(kind, 2, uses, .3)
				for _, u := range uses {
					after := u
					after[0] = min(1, u[0]+.1)
					system.Exchange(u, after)
				}
			}
		})
	}
}

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

const mb = 1_000_000

// bench is a machine under test.
type bench struct {
	t *testing.T
	*machine
	images map[string]*image
	blobs  map[string]*blob
	// reports has the times at which the machine reported, and the names in each
	// report.
	reports []report
}

type report struct {
	at    time.Duration
	names [][]string
}

// linksOnly is the default model, but only links take time.
func linksOnly() Model {
	m := DefaultModel()
	m.PullDelay, m.UnpackLayer, m.Unpack, m.PodStart = 0, 0, 0, 0
	m.ManifestDelay = 55 * time.Millisecond
	return m
}

// newBench makes a machine with a link of 6 MB/s: 50 Mbit/s without headers.
func newBench(t *testing.T, change func(*Model, *workload.Node)) *bench {
	model, spec := linksOnly(), workload.Node{Name: "n", MilliCPU: 1000, Memory: 1 << 30, Pods: 110, Disk: 1e12, Link: 6 * mb}
	if change != nil {
		change(&model, &spec)
	}
	b := &bench{t: t, images: map[string]*image{}, blobs: map[string]*blob{}}
	b.machine = newMachine(spec, &model, &queue{}, 0, func(m *machine) {
		r := report{at: m.q.now}
		for _, i := range statusImages(m) {
			r.names = append(r.names, i.Names)
		}
		b.reports = append(b.reports, r)
	})
	return b
}

// image defines an image with layers "NAME SIZE-IN-MB", base first.
func (b *bench) image(name string, layers ...any) {
	i := &image{id: len(b.images)}
	for k := 0; k < len(layers); k += 2 {
		digest, size := layers[k].(string), int64(layers[k+1].(int))*mb
		if b.blobs[digest] == nil {
			b.blobs[digest] = &blob{digest, size}
		}
		i.layers = append(i.layers, b.blobs[digest])
		i.size += size
	}
	b.images[name] = i
}

// pull makes a pod use an image from a moment on. It returns the time at which the
// image is ready.
func (b *bench) pull(at time.Duration, name string) *time.Duration {
	return b.pullAs(at, name, name)
}

func (b *bench) pullAs(at time.Duration, name, alias string) *time.Duration {
	ready := new(time.Duration)
	*ready = -1
	b.q.at(at, func() { b.use(b.images[name], alias, func() { *ready = b.q.now }) })
	return ready
}

// until plays until a moment.
func (b *bench) until(t time.Duration) {
	reached := false
	b.q.at(t, func() { reached = true })
	for !reached {
		b.q.next()
	}
}

// near fails if a time is not as expected, except for rounding.
func (b *bench) near(what string, got *time.Duration, seconds float64) {
	b.t.Helper()
	if math.Abs(got.Seconds()-seconds) > 1e-6 {
		b.t.Errorf("%s: ready after %s, want %g s", what, *got, seconds)
	}
}

// upTo returns a time before d.
func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// What takes time besides links. Times were computed by hand.
func TestDelays(t *testing.T) {
	b := newBench(t, func(m *Model, _ *workload.Node) {
		m.PullDelay, m.UnpackLayer, m.Unpack = 500*time.Millisecond, 250*time.Millisecond, 0.25/mb
	})
	b.image("a", "a1", 3, "a2", 3, "a3", 12)
	b.images["alias"] = b.images["a"]
	b.image("b", "a1", 3, "b", 6)
	ready := b.pull(0, "a")
	// 3 MB each until 0.5 + 1.5 s. Then a1 and a2 are unpacked, 1 s each. a3 is there
	// 1.5 s later, but its turn comes at 4 s: 3.25 s.
	b.until(seconds(3.5))
	if _, ok := b.present[b.blobs["a1"]]; !ok || len(b.present) != 1 {
		t.Errorf("%d layers at 3.5 s, want a1", len(b.present))
	}
	other := b.pull(seconds(4), "b") // only its own layer: 0.5 s, 1 s, 1.75 s
	b.until(time.Minute)
	b.near("a", ready, 7.25)
	b.near("b", other, 7.25)
	again, second := b.pull(time.Minute, "a"), b.pull(time.Minute, "alias")
	b.until(2 * time.Minute)
	b.near("the same", again, 60)
	b.near("another name", second, 60.5)
	if b.pulled != 24*mb {
		t.Errorf("%d bytes pulled, want 24 MB", b.pulled)
	}
}

// Times were computed by hand from equal shares of 6 MB/s.
func TestLinkIsShared(t *testing.T) {
	t.Run("layers of one image", func(t *testing.T) {
		b := newBench(t, nil)
		b.image("a", "a1", 3, "a2", 9)
		ready := b.pull(0, "a")
		b.until(seconds(0.5))
		b.advance()
		if left := []float64{b.flows[0].left, b.flows[1].left}; left[0] != 1.5*mb || left[1] != 7.5*mb {
			t.Errorf("%v bytes are left after half a second, want 1.5 and 7.5 MB", left)
		}
		// 3 MB each after 1 s; 6 MB more alone: 1 s.
		b.until(time.Minute)
		b.near("a", ready, 2)
	})
	t.Run("two images", func(t *testing.T) {
		b := newBench(t, nil)
		b.image("a", "a", 6)
		b.image("b", "b", 6)
		first, second := b.pull(0, "a"), b.pull(seconds(0.5), "b")
		b.until(time.Minute)
		// a alone for 0.5 s: 3 MB; then both at 3 MB/s until a is there at 1.5 s; b has 3 MB then.
		b.near("a", first, 1.5)
		b.near("b", second, 2)
	})
	t.Run("an image of more layers gets more", func(t *testing.T) {
		b := newBench(t, nil)
		b.image("a", "a1", 3, "a2", 3)
		b.image("b", "b", 3)
		first, second := b.pull(0, "a"), b.pull(0, "b")
		b.until(time.Minute)
		b.near("a", first, 1.5)
		b.near("b", second, 1.5)
	})
	t.Run("6 layers of an image at once", func(t *testing.T) {
		b := newBench(t, nil)
		b.image("a", "1", 1, "2", 1, "3", 1, "4", 1, "5", 1, "6", 1, "7", 1, "8", 1)
		ready := b.pull(0, "a")
		b.until(seconds(0.9))
		if len(b.flows) != 6 {
			t.Errorf("%d downloads at once, want 6", len(b.flows))
		}
		b.until(seconds(1.1))
		if len(b.flows) != 2 {
			t.Errorf("%d downloads of the rest, want 2", len(b.flows))
		}
		b.until(time.Minute)
		b.near("a", ready, 1+2.0/6)
	})
	t.Run("a layer of no bytes", func(t *testing.T) {
		b := newBench(t, nil)
		b.image("a", "empty", 0)
		b.image("none")
		ready, none := b.pull(0, "a"), b.pull(0, "none")
		b.until(time.Minute)
		b.near("a", ready, 0)
		b.near("none", none, 0)
	})
}

func TestPullQueue(t *testing.T) {
	b := newBench(t, func(m *Model, _ *workload.Node) { m.Pulls = 2 })
	for _, name := range []string{"a", "b", "c", "d"} {
		b.image(name, name, 6)
	}
	var ready []*time.Duration
	for _, name := range []string{"a", "b", "c", "d"} {
		ready = append(ready, b.pull(0, name))
	}
	more := b.pull(seconds(0.5), "c") // waits with the other pull
	for k, want := range []float64{2, 2, 4, 4} {
		if k == 2 {
			b.until(seconds(1.9))
			if len(b.pulls) != 2 || len(b.waiting) != 2 {
				t.Errorf("%d pulls, %d wait; want 2 and 2", len(b.pulls), len(b.waiting))
			}
			b.until(time.Minute)
		}
		if k >= 2 {
			b.near(fmt.Sprint(k), ready[k], want)
		}
	}
	b.near("0", ready[0], 2)
	b.near("1", ready[1], 2)
	b.near("c for the second pod", more, 4)
	if b.pulled != 24*mb {
		t.Errorf("%d bytes pulled, want 24 MB", b.pulled)
	}
}

// Three pods of one image and one of another, which share a layer of 12 MB, at once.
func TestJoins(t *testing.T) {
	for _, test := range []struct {
		joins Joins
		pulls int
		want  int64 // MB
	}{
		{JoinNothing, 10, 3*(12+6) + 12 + 3},
		{JoinImages, 10, 12 + 6 + 12 + 3},
		{JoinLayers, 10, 12 + 6 + 3},
		{JoinNothing, 1, 12 + 6 + 3},
		{JoinImages, 1, 12 + 6 + 3},
		{JoinLayers, 1, 12 + 6 + 3},
	} {
		t.Run(fmt.Sprintf("%s, %d at once", test.joins.String(), test.pulls), func(t *testing.T) {
			b := newBench(t, func(m *Model, _ *workload.Node) { m.Joins, m.Pulls = test.joins, test.pulls })
			b.image("a", "S", 12, "a", 6)
			b.image("b", "S", 12, "b", 3)
			var ready []*time.Duration
			for _, name := range []string{"a", "a", "a", "b"} {
				ready = append(ready, b.pull(0, name))
			}
			b.until(time.Hour)
			if b.pulled != test.want*mb {
				t.Errorf("%d bytes pulled, want %d MB", b.pulled, test.want)
			}
			for k, at := range ready {
				if *at == 0 || *at > time.Duration(test.want)*time.Second/6+time.Millisecond {
					t.Errorf("pod %d is ready after %s, want %d MB at 6 MB/s at most", k, *at, test.want)
				}
			}
			if users := b.machine.images[b.images["a"]].users; users != 3 {
				t.Errorf("%d users of the image, want 3", users)
			}
		})
	}
	var j Joins
	if err := j.Set("layers"); err != nil || j != JoinLayers {
		t.Errorf("%v, %v", j, err)
	}
	if err := j.Set("all"); err == nil || err.Error() != `"all": want one of nothing, images, layers` {
		t.Errorf("%v", err)
	}
}

// The results measured with CRI-O and its registry's log: README.md.
func TestAsOnTheRealNode(t *testing.T) {
	type at struct {
		image string
		after float64
	}
	many := func(n, size int) (layers []any) {
		for k := range n {
			layers = append(layers, fmt.Sprintf("S%d", k), size)
		}
		return layers
	}
	own := func(name string, size int, layers ...any) []any { return append(slices.Clone(layers), name, size) }
	ownFirst := func(layers ...any) map[string][]any {
		return map[string][]any{"a": layers, "b": {"S", 5, "own", 2}}
	}
	shared := func(size, own int) map[string][]any {
		return map[string][]any{"a": {"S", size, "a", own}, "b": {"S", size, "b", own}}
	}
	twelve := map[string][]any{"a": own("a", 1, many(12, 2)...), "b": own("b", 1, many(12, 2)...)}
	below, above := ownFirst("S", 5, "big", 30), ownFirst("big", 30, "S", 5)
	for _, test := range []struct {
		name   string
		images map[string][]any
		pulls  []at
		want   int64 // MB
	}{
		{"a shared layer, at once", shared(20, 5), []at{{"a", 0}, {"b", 0}}, 50},
		{"a shared layer, 1 s later", shared(20, 5), []at{{"a", 0}, {"b", 1}}, 50},
		{"a shared layer, just before the first is there", shared(20, 5), []at{{"a", 0}, {"b", 4}}, 50},
		{"a shared layer, just after", shared(20, 5), []at{{"a", 0}, {"b", 4.3}}, 30},
		{
			"three images of three shared layers",
			map[string][]any{"a": own("a", 2, many(3, 8)...), "b": own("b", 2, many(3, 8)...), "c": own("c", 2, many(3, 8)...)},
			[]at{{"a", 0}, {"b", 0}, {"c", 0}}, 78,
		},
		{"12 shared layers, at once", twelve, []at{{"a", 0}, {"b", 0}}, 50},
		{"a shared base, too early", below, []at{{"a", 0}, {"b", 1.5}}, 42},
		{"a shared base, committed while the pull goes on", below, []at{{"a", 0}, {"b", 2.5}}, 37},
		{"a shared base, later", below, []at{{"a", 0}, {"b", 4}}, 37},
		{"a shared layer above one that takes long", above, []at{{"a", 0}, {"b", 1.5}}, 42},
		{"the same, later", above, []at{{"a", 0}, {"b", 2.5}}, 42},
		{"the same, still later", above, []at{{"a", 0}, {"b", 4}}, 42},
		{"one image for two pods", shared(20, 5), []at{{"a", 0}, {"a", 0}}, 25},
		{"one image for two pods, 1 s later", shared(20, 5), []at{{"a", 0}, {"a", 1}}, 25},
		{"reuse above another base", map[string][]any{"a": {"x", 1, "S", 10}, "b": {"y", 1, "S", 10}}, []at{{"a", 0}, {"b", 10}}, 12},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil)
			for name, layers := range test.images {
				b.image(name, layers...)
			}
			var ready []*time.Duration
			for _, p := range test.pulls {
				ready = append(ready, b.pull(seconds(p.after), p.image))
			}
			b.until(time.Minute)
			if b.pulled != test.want*mb {
				t.Errorf("%.1f MB pulled, want %d", float64(b.pulled)/mb, test.want)
			}
			for k, r := range ready {
				if *r < 0 {
					t.Errorf("%s is never there", test.pulls[k].image)
				}
			}
		})
	}
	t.Run("per layer, not per image", func(t *testing.T) {
		b := newBench(t, nil)
		b.image("five", "1", 4, "2", 4, "3", 4, "4", 4, "5", 4)
		b.image("one", "6", 4)
		five, one := b.pull(0, "five"), b.pull(0, "one")
		b.until(time.Minute)
		b.near("five", five, 4) // measured 4.5 s, including what else a pod takes
		b.near("one", one, 4)   // measured: 3.8 s
	})
}

func TestSecondName(t *testing.T) {
	b := newBench(t, nil)
	b.image("a", "S", 6)
	b.pull(0, "a")
	second := b.pullAs(seconds(10), "a", "also a")
	b.until(seconds(11))
	b.near("the second name", second, 10)
	if b.pulled != 6*mb || b.used != 6*mb {
		t.Errorf("pulled %d, on disk %d; want 6 MB once", b.pulled, b.used)
	}
	if names := b.machine.images[b.images["a"]].names; !slices.Equal(names, []string{"a", "also a"}) {
		t.Errorf("names %q", names)
	}

	// CRI-O cannot see in advance that two names stand for the same image.
	b = newBench(t, nil)
	b.image("a", "S", 6)
	b.pull(0, "a")
	second = b.pullAs(0, "a", "also a")
	b.until(seconds(10))
	b.near("the second name, at once", second, 2)
	if b.pulled != 12*mb || b.used != 6*mb {
		t.Errorf("pulled %d, on disk %d; want 12 and 6 MB", b.pulled, b.used)
	}
	if h := b.machine.images[b.images["a"]]; h.users != 2 || len(h.names) != 2 {
		t.Errorf("%d users, names %q", h.users, h.names)
	}
}

// GC: the disk holds 100 MB compressed. Above 85 MB, images are removed until 80 MB
// are reached.
func TestGarbageCollection(t *testing.T) {
	small := func(m *Model, n *workload.Node) {
		m.Expansion = 2
		n.Disk = 200 * mb
		n.Link = 1e12
	}
	// fill uses and then releases images one after another.
	fill := func(b *bench, names ...string) {
		for _, name := range names {
			b.q.at(b.q.now, func() { b.use(b.images[name], name, func() {}) })
			b.until(b.q.now + time.Second)
			b.release(b.images[name])
		}
	}
	there := func(b *bench) (names []string) {
		for name, i := range b.images {
			if b.machine.images[i] != nil {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	check := func(t *testing.T, b *bench, used int64, want ...string) {
		t.Helper()
		if got := there(b); !slices.Equal(got, want) || b.used != used*mb || b.pulled-b.removed != used*mb {
			t.Errorf("images %q, %d bytes used, %d pulled, %d removed; want %q, %d MB", got, b.used, b.pulled, b.removed, want, used)
		}
	}

	t.Run("below the threshold", func(t *testing.T) {
		b := newBench(t, small)
		b.image("a", "a", 40)
		b.image("b", "b", 45)
		fill(b, "a", "b")
		b.until(time.Hour)
		check(t, b, 85, "a", "b")
	})
	t.Run("least recently used first", func(t *testing.T) {
		b := newBench(t, small)
		for _, name := range []string{"a", "b", "c", "d"} {
			b.image(name, name, 20)
		}
		b.image("e", "e", 6)
		fill(b, "a", "b", "c", "d", "e", "a") // a again
		b.until(time.Hour)
		check(t, b, 66, "a", "c", "d", "e")
	})
	t.Run("in use", func(t *testing.T) {
		b := newBench(t, small)
		b.image("a", "a", 40)
		b.image("b", "b", 50)
		b.pull(0, "a")
		b.until(time.Second)
		fill(b, "b")
		b.until(time.Hour)
		check(t, b, 40, "a")
	})
	t.Run("too young", func(t *testing.T) {
		b := newBench(t, small)
		b.image("a", "a", 90)
		b.until(5*time.Minute - time.Second - 10*time.Millisecond) // one check every 5 minutes
		fill(b, "a")
		b.until(9 * time.Minute)
		check(t, b, 90, "a")
		b.until(11 * time.Minute)
		check(t, b, 0)
	})
	t.Run("shared layers stay, and the kubelet counts them as freed", func(t *testing.T) {
		b := newBench(t, small)
		b.image("a", "S", 50, "a", 5)
		b.image("b", "S", 50, "b", 20)
		b.image("c", "c", 15)
		fill(b, "a", "b", "c") // 90: 10 must be freed; a has 55, of which 5 are freed
		b.until(6 * time.Minute)
		check(t, b, 85, "b", "c")
	})
	t.Run("a pull that goes on relies on a layer", func(t *testing.T) {
		b := newBench(t, func(m *Model, n *workload.Node) {
			small(m, n)
			n.Link = 1 * mb
		})
		b.image("a", "S", 86)
		b.image("b", "S", 86, "b", 400)
		done := b.pull(0, "a")
		b.until(100 * time.Second)
		b.near("a", done, 86)
		b.release(b.images["a"])
		done = b.pull(b.q.now, "b")
		b.until(6 * time.Minute)
		check(t, b, 86) // a is gone, but not its layer
		b.until(time.Hour)
		b.near("b", done, 500)
		if b.used != 486*mb || b.pulled != 486*mb || b.removed != 0 {
			t.Errorf("%d used, %d pulled, %d removed; want 486 MB pulled once", b.used, b.pulled, b.removed)
		}
	})
	t.Run("a full disk does not wait", func(t *testing.T) {
		b := newBench(t, small)
		b.image("a", "a", 60)
		b.image("b", "b", 60)
		fill(b, "a")
		b.until(4 * time.Minute)
		b.pull(b.q.now, "b")
		b.until(4*time.Minute + time.Second)
		check(t, b, 60, "b")
	})
}

func TestReports(t *testing.T) {
	t.Run("lag", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 1))
		for range 200 {
			b := newBench(t, nil)
			b.phase = [3]time.Duration{upTo(random, 30*time.Second), upTo(random, 10*time.Second)}
			b.image("a", "a", 6)
			start := upTo(random, 2*time.Minute)
			ready := b.pull(start, "a")
			b.until(5 * time.Minute)
			if len(b.reports) != 1 {
				t.Fatalf("%d reports of one change", len(b.reports))
			}
			// Computed again: the first refresh after the image is there, then the
			// first status update after that.
			refresh := b.phase[0]
			for refresh <= *ready {
				refresh += 30 * time.Second
			}
			status := b.phase[1]
			for status <= refresh {
				status += 10 * time.Second
			}
			at := b.reports[0].at
			if at != status || at-*ready > 40*time.Second {
				t.Fatalf("ready at %s, phases %s, reported at %s, want %s", *ready, b.phase, at, status)
			}
		}
	})
	t.Run("what is gone", func(t *testing.T) {
		b := newBench(t, func(_ *Model, n *workload.Node) { n.Disk = 1 })
		b.image("a", "a", 6)
		b.pull(0, "a")
		b.until(4 * time.Minute)
		b.release(b.images["a"])
		b.until(6 * time.Minute)
		if n := len(b.reports); n != 2 || len(b.reports[0].names) != 1 || len(b.reports[1].names) != 0 {
			t.Errorf("reports %v, want one with the image and one without", b.reports)
		}
	})
	t.Run("largest images, five names", func(t *testing.T) {
		b := newBench(t, func(m *Model, n *workload.Node) { m.Pulls, n.Link = 100, 1e12 })
		for k := range 60 {
			name := fmt.Sprintf("i%02d", k)
			b.image(name, name, k+1)
			b.pull(0, name)
		}
		for k := range 7 {
			b.pullAs(time.Second, "i59", fmt.Sprintf("alias-%d", k))
		}
		b.until(time.Minute)
		names := b.reports[len(b.reports)-1].names
		if len(names) != 50 || names[49][0] != "i10" || !slices.Equal(names[0], []string{"i59", "alias-0", "alias-1", "alias-2", "alias-3"}) {
			t.Errorf("%d images, the first %q, the last %q; want 50, i59 with 5 names, i10", len(names), names[0], names[len(names)-1])
		}
		b.model.MaxImages = -1
		if n := len(b.list()); n != 60 {
			t.Errorf("%d images without a limit, want 60", n)
		}
	})
}

// Small layers are not reported; LRScheduler, which has the manifests, has them.
func TestStatedLayers(t *testing.T) {
	needsLayers(t)
	b := newBench(t, nil)
	b.image("a", "large", 3, "small", 1)
	b.blobs["small"].size = 1<<20 - 1
	b.image("b", "limit", 1)
	b.blobs["limit"].size = 1 << 20
	b.hold(b.images["a"], "a")
	b.hold(b.images["b"], "b")
	b.listed = b.list()
	var layers [][]index.Layer
	for _, i := range nodestatus.Images(nodeObject(b.machine)) {
		layers = append(layers, i.Layers)
	}
	want := [][]index.Layer{{{Digest: "large", Size: 3 * mb}}, {{Digest: "limit", Size: 1 << 20}}}
	if !slices.EqualFunc(layers, want, slices.Equal) {
		t.Errorf("layers %v, want %v", layers, want)
	}
	if !b.stated[b.blobs["small"]] || len(b.stated) != 3 {
		t.Errorf("%d layers of stated images, want 3", len(b.stated))
	}
}

// Random pods use and release images with shared layers; the invariants hold after
// every event.
func TestMachineInvariants(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 7))
		b := newBench(t, func(m *Model, n *workload.Node) {
			m.Pulls, m.Downloads, m.Joins = 1+random.IntN(4), 1+random.IntN(6), Joins(random.IntN(3))
			m.GCPeriod, m.GCMinAge = 20*time.Second, 5*time.Second
			m.MaxImages = random.IntN(8) - 1
			if seed%2 == 1 {
				m.PullDelay, m.UnpackLayer, m.Unpack = upTo(random, time.Second), upTo(random, time.Second), random.Float64()/mb
			}
			n.Disk, n.Link = int64(50+random.IntN(200))*mb, float64(1+random.IntN(20))*mb
		})
		var names []string
		for k := range 25 {
			var layers []any
			for _, l := range random.Perm(30)[:1+random.IntN(8)] {
				layers = append(layers, fmt.Sprintf("l%d", l), 1+l%7)
			}
			name := fmt.Sprintf("i%d", k)
			b.image(name, layers...)
			names = append(names, name)
		}
		asked, ready, users := 0, 0, map[*image]int{}
		for range 150 {
			name := names[random.IntN(len(names))]
			i, alias := b.images[name], name
			if random.IntN(4) == 0 {
				alias += " again"
			}
			lifetime := upTo(random, 40*time.Second)
			b.q.at(upTo(random, 4*time.Minute), func() {
				asked++
				b.use(i, alias, func() {
					ready++
					users[i]++
					b.q.at(b.q.now+lifetime, func() {
						users[i]--
						b.release(i)
					})
				})
			})
		}
		// carried is what the link could carry while there was something to pull.
		carried, ends := 0.0, 0
		for len(b.q.pending) > 0 {
			busy, before, flows := len(b.flows) > 0, b.q.now, len(b.flows)
			b.q.next()
			if busy {
				carried += (b.q.now - before).Seconds() * b.Link
			}
			ends += max(0, flows-len(b.flows))
			b.check(seed, users)
		}
		if asked != 150 || ready != asked || len(b.flows)+len(b.pulls)+len(b.waiting) > 0 {
			t.Errorf("seed %d: %d pods asked, %d images were ready; %d pulls, %d wait", seed, asked, ready, len(b.pulls), len(b.waiting))
		}
		// Each end of a flow is a nanosecond late, and bytes are rounded.
		if slack := float64(ends+300) * (b.Link*2e-9 + 1); math.Abs(carried-float64(b.pulled)) > slack {
			t.Errorf("seed %d: the link carried %.0f bytes, %d were pulled", seed, carried, b.pulled)
		}
		once := b.model.Pulls == 1 || b.model.Joins == JoinLayers
		if b.pulled < b.used+b.removed || once && b.pulled != b.used+b.removed {
			t.Errorf("seed %d: pulled %d, on disk %d, removed %d, %d pulls at once", seed, b.pulled, b.used, b.removed, b.model.Pulls)
		}
		if b.removed == 0 {
			t.Errorf("seed %d: the disk was never full, which was to be tested", seed)
		}
	}
}

// check compares a machine's counters with what it has.
func (b *bench) check(seed uint64, users map[*image]int) {
	b.t.Helper()
	var used int64
	needed := map[*blob]int{}
	for i, h := range b.machine.images {
		// A pod that waits for the round trips of another name is already a user.
		if h.users < users[i] || h.users > users[i] && (b.model.PullDelay == 0 || len(b.q.pending) == 0) {
			b.t.Fatalf("seed %d at %s: image %d has %d users, want %d", seed, b.q.now, i.id, h.users, users[i])
		}
		for _, l := range i.layers {
			needed[l]++
		}
	}
	for l, n := range b.present {
		used += l.size
		if n != needed[l] || n == 0 && !b.expects(l) {
			b.t.Fatalf("seed %d at %s: layer %s counts for %d images, want %d", seed, b.q.now, l.digest, n, needed[l])
		}
	}
	for l := range needed {
		if _, ok := b.present[l]; !ok {
			b.t.Fatalf("seed %d at %s: layer %s of an image is not there", seed, b.q.now, l.digest)
		}
	}
	if used != b.used {
		b.t.Fatalf("seed %d at %s: %d bytes used, the layers have %d", seed, b.q.now, b.used, used)
	}
	if len(b.pulls) > b.model.Pulls {
		b.t.Fatalf("seed %d at %s: %d pulls at once", seed, b.q.now, len(b.pulls))
	}
	for _, p := range b.pulls {
		flows := 0
		for _, f := range b.flows {
			if slices.Contains(f.pulls, p) {
				flows++
			}
		}
		if flows != p.flows || flows > b.model.Downloads || flows == 0 && b.model.PullDelay == 0 {
			b.t.Fatalf("seed %d at %s: a pull has %d downloads and counts %d", seed, b.q.now, flows, p.flows)
		}
	}
}

package index

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/imageref"
)

// A standby or idle scheduler never measures; reservations must expire
// nevertheless.
func TestExpiryWithoutMeasure(t *testing.T) {
	x := newIndex("n1")
	for i := range 1000 {
		p := types.UID(fmt.Sprint(i))
		past := t0
		x.Reserve(p, "n1", want(fmt.Sprintf("small%d:1", i)), joining, past.Add(time.Second*time.Duration(2*i)), past.Add(time.Second*time.Duration(2*i+1)))
		x.started(p, past.Add(time.Second*time.Duration(2*i+1)))
		x.Release(p) // pod deleted
	}
	if s := x.Stats(); s.Reservations > 2 {
		t.Errorf("%d reservations of deleted pods, nearly all past their deadline, %d layers", s.Reservations, s.Layers)
	}
}

// One node must not win the vote by repeating itself.
func TestOneNodeOneVote(t *testing.T) {
	x := newIndex("n1", "n2", "n3", "evil", "n5")
	for _, n := range []string{"n1", "n2", "n3"} {
		x.SetImages("s", n, []Image{image("ab", "docker.io/library/one:1")})
	}
	var images []Image
	for i := range 4 {
		images = append(images, image("c", "docker.io/library/one:1", fmt.Sprintf("docker.io/library/x:%d", i)))
	}
	x.SetImages("s", "evil", images)
	check(t, x, want("one:1"), map[string]NodeBytes{"n5": {Total: sum("ab")}})
}

// An image that a node lists twice counts once, and nothing is left of it when it is gone.
func TestListedTwice(t *testing.T) {
	x := newIndex("n1")
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1"), image("ab", "docker.io/library/one:1")}) // and nobody had it before
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: sum("ab"), Present: sum("ab")}})
	checkInvariants(t, x)
	x.SetImages("s", "n1", nil)
	once := func() Stats {
		x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1"), image("cd")})
		return x.Stats()
	}()
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/one:1"), image("cd"), image("cd"), image("ab", "docker.io/library/one:1")})
	if got := x.Stats(); got.Layers != once.Layers || got.Images != once.Images {
		t.Errorf("listed twice %+v, once %+v", got, once)
	}
	checkInvariants(t, x)
	x.SetImages("s", "n1", nil)
	if got, empty := x.Stats(), newIndex("n1").Stats(); got != empty {
		t.Errorf("left %+v, want %+v", got, empty)
	}
}

// Names with NUL must not give two images the same key.
func TestNamesWithNUL(t *testing.T) {
	x := newIndex("evil", "n1", "n2")
	a, b := "docker.io/library/one@"+digest("one"), "docker.io/library/one:1"
	evil := image("ab", a+"\x00"+b)
	x.SetImages("s", "evil", []Image{evil})
	x.SetImages("s", "n1", []Image{image("ab", a, b)})
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: sum("ab"), Present: sum("ab")}})
}

// Reserve on a platform where an image is not known must not overwrite its
// size on the other.
func TestPlatformsOfPieces(t *testing.T) {
	x := newIndex("n1", "n2")
	x.SetNode("arm", arm64)
	x.SetImages("s", "n1", []Image{{Names: []string{"docker.io/library/one:1"}, SizeBytes: 5000}})
	// That some nodes have it by name does not show what other platforms would pull.
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: 5000, Present: 5000}, "n2": {Total: 5000}, "arm": {}})
	x.Reserve("p", "arm", want("one:1"), joining, t0, t0.Add(time.Hour))
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: 5000, Present: 5000}, "n2": {Total: 5000}})
	x.Release("p")
	check(t, x, want("one:1"), map[string]NodeBytes{"n1": {Total: 5000, Present: 5000}, "n2": {Total: 5000}})
}

// A source that reports late must not bring a deleted node back for ever.
func TestReportsOfUnknownNodes(t *testing.T) {
	x := newIndex("n1")
	x.SetNode("n2", amd64)
	x.DeleteNode("n2")
	x.SetImages("agent", "n2", []Image{image("ab", "docker.io/library/one:1")})
	if s := x.Stats(); s.Nodes != 1 {
		t.Errorf("%d nodes, %d groups", s.Nodes, len(x.groups))
	}
	x.SetImages("agent", "n2", nil)
	if s := x.Stats(); s.Nodes != 1 {
		t.Errorf("after an empty report: %d nodes, %d groups", s.Nodes, len(x.groups))
	}
}

// An image reported under a mirror's name must count as reported.
func TestReportedUnderMirror(t *testing.T) {
	x := newIndex("n1")
	w := []Wanted{{Names: []imageref.Canonical{"docker.io/library/one:1", "mirror.example.com/library/one:1"}}}
	x.Reserve("p", "n1", w, joining, t0, t0.Add(time.Hour))
	x.SetImages("s", "n1", []Image{image("ab", "mirror.example.com/library/one:1")})
	if s := x.Stats(); s.Reservations != 0 || s.PendingBytes != 0 {
		t.Errorf("left: %+v", s)
	}
}

// All operations at once, for the race detector.
func TestConcurrent(t *testing.T) {
	x := New()
	var g sync.WaitGroup
	for worker := range 4 {
		g.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 1)) //nolint:gosec // a test that can be repeated
			w := &Measurement{}
			rules := Rules{MaxWaiting: 2, UnknownBytes: 77, JoinsDownloads: worker%2 == 0}
			for i := range 3000 {
				node := fmt.Sprintf("node%d", r.IntN(12))
				pod := types.UID(fmt.Sprint(r.IntN(200)))
				now := t0.Add(time.Duration(i) * time.Second)
				wanted := want(fmt.Sprintf("example.com/image%d:0", r.IntN(20)))
				switch r.IntN(9) {
				case 0:
					x.DeleteNode(node)
				case 1:
					x.SetNode(node, []Platform{amd64, amd64, arm64}[r.IntN(3)])
					x.SetJoins(node, randomJoins(r))
				case 2:
					x.SetImages([]string{"a", "b"}[r.IntN(2)], node, []Image{randomImage(r), randomImage(r)})
				case 3:
					x.Reserve(pod, node, wanted, rules, now, now.Add(30*time.Second))
				case 4:
					x.started(pod, now.Add(30*time.Second))
				case 5:
					x.Release(pod)
				case 6:
					x.Stats()
				case 7:
					x.Reported(wanted[0].Names)
				default:
					x.Measure(wanted, rules, now, w)
					for n := range w.Nodes() {
						got, _ := w.Node(n)
						if got.Present+got.Arriving+got.Crowded > got.Total || got.Pending < 0 {
							t.Errorf("%s %+v", n, got)
							return
						}
					}
				}
			}
		})
	}
	g.Wait()
	checkInvariants(t, x)
}

// One node reports a name very often, with all possible sizes.
func TestHostileReport(t *testing.T) {
	x := newIndex("n1", "n2", "evil")
	x.SetImages("s", "n1", []Image{image("ab", "docker.io/library/nginx:latest")})
	images := make([]Image, 10*maxImages)
	for i := range images {
		images[i] = Image{Names: []string{"nginx", fmt.Sprint("nginx:", i)}, Layers: []Layer{{digest("c"), int64(i)}}}
		for j := range 10 * maxNames {
			images[i].Names = append(images[i].Names, fmt.Sprintf("name%d:%d", j, i))
		}
	}
	x.SetImages("s", "evil", images)
	if s := x.Stats(); s.Images > maxImages+1 || s.Names > maxImages*maxNames+1 {
		t.Errorf("taken in: %+v", s)
	}
	if reports := x.names["docker.io/library/nginx:latest"].reports; len(reports) != 2 {
		t.Errorf("nginx is %d times on two nodes", len(reports))
	}
	x.SetImages("s", "evil", nil)
	check(t, x, want("nginx"), map[string]NodeBytes{"n1": {Total: sum("ab"), Present: sum("ab")}, "n2": {Total: sum("ab")}})
}

// benchmarkFleet is 5,000 nodes of which half have an image of 12 layers.
func benchmarkFleet(b *testing.B, change func(x *Index)) {
	x := New()
	var layers []Layer
	for i := range 12 {
		layers = append(layers, Layer{digest(fmt.Sprint(i)), 1000})
	}
	for i := range 5000 {
		node := fmt.Sprint("n", i)
		x.SetNode(node, amd64)
		if i%2 == 0 {
			x.SetImages("s", node, []Image{{Names: []string{"nginx"}, Layers: layers}})
		}
	}
	change(x)
	var w Measurement
	for b.Loop() {
		x.Measure(want("nginx"), joining, t0, &w)
	}
}

// A node whose report of 1,024 images is replaced by another one of as many, in turns. Nobody can
// measure meanwhile, so it has to stay in proportion to the number of layers (here with 64 each).
func BenchmarkReplacedReport(b *testing.B) {
	x := newIndex("n1")
	var reports [2][]Image
	for i := range reports {
		for j := range maxImages {
			img := Image{Names: []string{fmt.Sprint("image:", j)}}
			for k := range 64 {
				img.Layers = append(img.Layers, Layer{digest(fmt.Sprint(i, (j*61+k)%4096)), 1000})
			}
			reports[i] = append(reports[i], img)
		}
	}
	for i := 0; b.Loop(); i++ {
		x.SetImages("s", "n1", reports[i%2])
	}
}

func BenchmarkMeasure(b *testing.B) {
	b.Run("uniform", func(b *testing.B) { benchmarkFleet(b, func(*Index) {}) })
	b.Run("one node of another platform", func(b *testing.B) {
		benchmarkFleet(b, func(x *Index) { x.SetNode("n1", arm64) })
	})
	b.Run("half of another platform", func(b *testing.B) {
		benchmarkFleet(b, func(x *Index) {
			for i := range 2500 {
				x.SetNode(fmt.Sprint("n", i), arm64)
			}
		})
	})
	b.Run("one node disagrees on the tag", func(b *testing.B) {
		benchmarkFleet(b, func(x *Index) { x.SetImages("s", "n0", []Image{image("ab", "nginx")}) })
	})
	b.Run("arriving on 1,000 nodes", func(b *testing.B) {
		benchmarkFleet(b, func(x *Index) {
			for i := range 1000 {
				x.Reserve(types.UID(fmt.Sprint(i)), fmt.Sprint("n", 2*i+1), want("nginx"), joining, t0, t0.Add(time.Hour))
			}
		})
	})
}

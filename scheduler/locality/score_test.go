package locality_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/index"
	"github.com/layer-locality/layer-locality/scheduler/locality"
)

func TestScoreProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test that can be repeated
	s := newSuite(t, args(), nil)
	profile := func(args *config.LayerLocalityArgs) *locality.Profile { return s.tracker.NewProfile("p", args) }
	amount := func() int64 { return r.Int64N(1<<40) >> r.IntN(41) }
	for range 200_000 {
		p := profile(args(func(a *configv1.LayerLocalityArgs) {
			a.MinImageBytes = ptr.To(1 + amount())
			a.LinkPenalty = ptr.To(r.Int32N(1001))
		}))
		w := index.NodeBytes{Total: amount(), Pending: amount()}
		w.Present = r.Int64N(w.Total + 1)
		w.Arriving = r.Int64N(w.Total - w.Present + 1)
		w.Crowded = r.Int64N(w.Total - w.Present - w.Arriving + 1)
		b := locality.Balance{
			LoadPenalty: r.Float64() * 400, NoRequestPenalty: r.Float64() * 100,
			MeanPercent: r.Float64() * 100, MeanWithoutRequest: r.Float64() * 10,
		}
		load := b.LoadPoints(locality.Load{Percent: r.Float32() * 100, WithoutRequest: r.Float32() * 10})
		if load > 0 {
			t.Fatalf("%+v: load gives %v points", b, load)
		}
		var others locality.Delays
		for range r.IntN(4) {
			p.AddDelay(&others, index.NodeBytes{Total: w.Total, Pending: amount()})
		}
		all := others
		p.AddDelay(&all, w)
		points := p.Points(w, load, all)
		score := points.Score()
		if score < 0 || score > locality.MaxScore || math.IsNaN(points.Locality+points.Link+points.Load) {
			t.Fatalf("%+v: %+v = %d", w, points, score)
		}
		// One more layer: it was missing, or it arrived.
		better := w
		if missing := w.Missing(); missing > 0 && r.IntN(2) == 0 {
			better.Present += 1 + r.Int64N(missing)
		} else {
			n := r.Int64N(w.Arriving + 1)
			better.Present, better.Arriving, better.Pending = w.Present+n, w.Arriving-n, max(0, w.Pending-n)
		}
		all = others
		p.AddDelay(&all, better)
		if got := p.Points(better, load, all).Score(); got < score {
			t.Fatalf("%+v scores %d, with more present %+v %d", w, score, better, got)
		}
	}
	if got := profile(args()).Points(index.NodeBytes{}, 0, locality.Delays{}).Score(); got != 0 {
		t.Errorf("nothing scores %d", got)
	}
}

// What a node's link has to pull counts only by how much later the pod would start than
// on an idle node that has nothing.
func TestPoints(t *testing.T) {
	s := newSuite(t, args(), nil)
	p := s.tracker.NewProfile("p", args(func(a *configv1.LayerLocalityArgs) {
		a.MinImageBytes, a.LinkPenalty = ptr.To[int64](100), ptr.To[int32](50)
	}))
	for name, test := range map[string]struct {
		bytes          index.NodeBytes
		locality, link float64
	}{
		"nothing there":                      {index.NodeBytes{Total: 200}, 0, 0},
		"half there":                         {index.NodeBytes{Total: 200, Present: 100}, 50, 0},
		"half arriving":                      {index.NodeBytes{Total: 200, Arriving: 100, Pending: 100}, 50, 0},
		"all there, the link is busy":        {index.NodeBytes{Total: 200, Present: 200, Pending: 900}, 100, 0},
		"half there, behind 250":             {index.NodeBytes{Total: 200, Present: 100, Pending: 250}, 50, -50 * 150. / 200},
		"half there, behind 100":             {index.NodeBytes{Total: 200, Present: 100, Pending: 100}, 50, 0},
		"all arriving, behind others":        {index.NodeBytes{Total: 200, Arriving: 200, Pending: 600}, 100, -50 * 400. / 200},
		"all on its way for too many others": {index.NodeBytes{Total: 200, Crowded: 200, Pending: 600}, 0, -50 * 400. / 200},
		"a small image":                      {index.NodeBytes{Total: 50, Present: 25, Pending: 75}, 25, -50 * 50. / 100},
	} {
		got := p.Points(test.bytes, -7, locality.Delays{})
		if !near(got.Locality, test.locality) || !near(got.Link, test.link) || got.Load != -7 {
			t.Errorf("%s: %+v, want locality %v, link %v, load -7", name, got, test.locality, test.link)
		}
	}
}

// Where every link is behind, nodes still differ.
func TestPointsAmongLateNodes(t *testing.T) {
	s := newSuite(t, args(), nil)
	p := s.tracker.NewProfile("p", args(func(a *configv1.LayerLocalityArgs) {
		a.MinImageBytes, a.LinkPenalty = ptr.To[int64](100), ptr.To[int32](50)
	}))
	half := index.NodeBytes{Total: 200, Present: 100, Pending: 1000}    // 900 late
	nothing := index.NodeBytes{Total: 200, Pending: 1200}               // 1200 late
	complete := index.NodeBytes{Total: 200, Present: 200, Pending: 900} // nothing to wait for
	delays := func(nodes ...index.NodeBytes) (all locality.Delays) {
		for _, n := range nodes {
			p.AddDelay(&all, n)
		}
		return all
	}
	all := delays(half, nothing)
	if got := p.Points(half, 0, all); got.Link != 0 || got.Score() != 50 {
		t.Errorf("the least late node: %+v", got)
	}
	// 300 of what pods wait on average: 200 for the image, (900 + 1200) / 2 for others.
	if got := p.Points(nothing, 0, all); !near(got.Link, -50*300./1250) {
		t.Errorf("later by 300: %+v", got)
	}
	if got := p.Points(half, 0, delays(half, complete)); !near(got.Link, -50*900./(200+450)) {
		t.Errorf("the other node has everything: %+v", got)
	}
	// One queue without end takes nothing away from the others.
	endless := index.NodeBytes{Total: 200, Pending: 1 << 50}
	if got := p.Points(half, 0, delays(half, complete, endless)); !near(got.Link, -50*900./(200+(900+20*200)/3.)) {
		t.Errorf("beside an endless queue: %+v", got)
	}
}

// A pod that is not placed after all leaves nothing.
func TestRelease(t *testing.T) {
	s := newSuite(t, args(), nodes("n1"))
	p := pod("p", "quay.io/a:1")
	s.profile.Reserve(p, "n1")
	if got := s.measure(p, "n1"); got.Pending == 0 {
		t.Errorf("%+v, want something pending", got)
	}
	s.profile.Release(p.UID)
	if got := s.measure(p, "n1"); got.Pending != 0 || s.tracker.Stats().Reservations != 0 {
		t.Errorf("%+v, %+v, want nothing", got, s.tracker.Stats())
	}
}

func TestScoreOfPoints(t *testing.T) {
	for _, test := range []struct {
		points locality.Points
		want   int64
	}{
		{locality.Points{Locality: 30}, 30},
		// The mean of equal loads may differ from them in the last digit.
		{locality.Points{Locality: 30, Load: -1e-9}, 30},
		{locality.Points{Locality: 29.99}, 29},
		{locality.Points{Locality: 50, Link: -10, Load: -20}, 20},
		{locality.Points{Locality: 10, Link: -10, Load: -20}, 0},
		{locality.Points{Locality: 100.5}, 100},
		{locality.Points{Locality: math.NaN()}, 0},
	} {
		if got := test.points.Score(); got != test.want {
			t.Errorf("%+v: %d, want %d", test.points, got, test.want)
		}
	}
}

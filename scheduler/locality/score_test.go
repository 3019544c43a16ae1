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
			CPUPenalty: r.Float64() * 400, NoRequestPenalty: r.Float64() * 100,
			MeanCPUPercent: r.Float64() * 100, MeanWithoutRequest: r.Float64() * 10,
		}
		load := b.LoadPoints(locality.Load{CPUPercent: r.Float32() * 100, WithoutRequest: r.Float32() * 10})
		if load > 0 {
			t.Fatalf("%+v: load gives %v points", b, load)
		}
		points := p.Points(w, load)
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
		if got := p.Points(better, load).Score(); got < score {
			t.Fatalf("%+v scores %d, with more present %+v %d", w, score, better, got)
		}
	}
	if got := profile(args()).Points(index.NodeBytes{}, 0).Score(); got != 0 {
		t.Errorf("nothing scores %d", got)
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

package evaluation

import (
	"math"
	"testing"
)

func TestSetStartups(t *testing.T) {
	m := Metrics{StartupMean: 7}
	m.SetStartups([]float64{4, 1, 3, 2})
	if m.StartupMean != 2.5 || m.StartupP50 != 2 || m.StartupP99 != 4 {
		t.Errorf("mean %v, p50 %v, p99 %v, want 2.5, 2, 4", m.StartupMean, m.StartupP50, m.StartupP99)
	}
	m = Metrics{}
	m.SetStartups(nil)
	if m != (Metrics{}) {
		t.Errorf("of no pods: %+v", m)
	}
}

func TestSetBalance(t *testing.T) {
	var b Balance
	b.Add([]Load{{0.2, 1}, {0, 0}})   // 0.1, 2
	b.Add([]Load{{0.2, 1}, {0.2, 1}}) // 0, 1
	b.Add([]Load{{0.6, 2}, {0.2, 1}}) // 0.2, 4/3
	var m Metrics
	m.SetBalance(b)
	if math.Abs(m.CPUStd-0.1) > 1e-9 || math.Abs(m.MaxMeanPods-(3+4.0/3)/3) > 1e-9 {
		t.Errorf("CPU std %v, max/mean %v", m.CPUStd, m.MaxMeanPods)
	}
	m = Metrics{}
	m.SetBalance(Balance{})
	if m.CPUStd != 0 || m.MaxMeanPods != 0 {
		t.Errorf("of no moment: %+v", m)
	}
}

func TestAvoided(t *testing.T) {
	base := Metrics{PulledBytes: 100, DistinctBytes: 20}
	for pulled, want := range map[int64]float64{100: 0, 60: 0.5, 20: 1, 180: -1} {
		if got := (&Metrics{PulledBytes: pulled, DistinctBytes: 7}).Avoided(&base); got != want {
			t.Errorf("%d pulled: %v, want %v", pulled, got, want)
		}
	}
	for _, base := range []Metrics{{}, {PulledBytes: 20, DistinctBytes: 20}, {PulledBytes: 20}} {
		if got := (&Metrics{PulledBytes: 10}).Avoided(&base); !math.IsNaN(got) {
			t.Errorf("of %+v: %v, want no number", base, got)
		}
	}
}

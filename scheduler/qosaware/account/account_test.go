package account_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns a time, in seconds after the start.
func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func near(a, b, tolerance float64) bool {
	return a == b || math.Abs(a-b) <= tolerance
}

func TestWeigh(t *testing.T) {
	hour := account.Window(time.Hour)
	for name, test := range map[string]struct {
		window        account.Window
		from, to, now float64
		want          float64
	}{
		"no window":          {0, 10, 30, 100, 20},
		"until now":          {0, 10, 300, 100, 90},
		"turned round":       {0, 30, 10, 100, 0},
		"in the future":      {0, 110, 120, 100, 0},
		"window":             {hour, 0, 1000, 1000, 873.13},
		"window, later":      {hour, 0, 1000, 4600, 873.13 * math.Exp(-1)},
		"window, short time": {hour, 0, 1e-6, 1e-6, 1e-6},
	} {
		if got := test.window.Weigh(at(test.from), at(test.to), at(test.now)); !near(got, test.want, .005*math.Min(1, test.want)) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestCounter checks that sums may be added in any order, and that a counter weighs as the
// intervals that were added to it.
func TestCounter(t *testing.T) {
	w := account.Window(100 * time.Second)
	var forward, backward account.Counter
	whole := w.Weigh(at(0), at(50), at(200))
	for i := range 5 {
		from, to := at(float64(10*i)), at(float64(10*i+10))
		forward.Add(account.Sums{Running: w.Weigh(from, to, to)}, w, to)
		from, to = at(float64(40-10*i)), at(float64(50-10*i))
		backward.Add(account.Sums{Running: w.Weigh(from, to, to)}, w, to)
	}
	for name, c := range map[string]account.Counter{"forward": forward, "backward": backward} {
		if got := c.As(w, at(200)).Running; !near(got, whole, 1e-9) {
			t.Errorf("%s: %v, want %v", name, got, whole)
		}
	}
	if got := (account.Counter{}).As(w, at(1)); got != (account.Sums{}) {
		t.Errorf("empty: %v", got)
	}
}

func TestLife(t *testing.T) {
	for name, test := range map[string]struct {
		life account.Life
		now  float64
		want account.Sums
		ran  float64
	}{
		"pending":                 {account.Life{Created: at(0)}, 30, account.Sums{Waiting: 30}, 0},
		"being bound":             {account.Life{Created: at(0), Reserved: at(20)}, 30, account.Sums{Waiting: 20, Binding: 10}, 0},
		"bound, not ready":        {account.Life{Created: at(0), Bound: at(10), Binding: time.Second}, 30, account.Sums{Waiting: 29, Binding: 1}, 0},
		"running":                 {account.Life{Created: at(0), Bound: at(10), Binding: time.Second, Since: at(25)}, 30, account.Sums{Waiting: 24, Binding: 1, Running: 5}, 5},
		"ended":                   {account.Life{Created: at(0), Bound: at(10), Since: at(10), Ended: at(15)}, 30, account.Sums{Waiting: 10, Running: 5}, 5},
		"bound in its 1st second": {account.Life{Created: at(0), Bound: at(0), Binding: time.Second, Since: at(0)}, 30, account.Sums{Binding: 1, Running: 29}, 29},
		"a clock that is behind":  {account.Life{Created: at(40)}, 30, account.Sums{}, 0},
		"ended before it ran":     {account.Life{Created: at(0), Bound: at(10), Since: at(20), Ended: at(15)}, 30, account.Sums{Waiting: 15}, 0},
	} {
		if got := test.life.Sums(0, at(test.now)); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		if got := test.life.Ran(at(test.now)).Seconds(); got != test.ran {
			t.Errorf("%s: ran %v s, want %v", name, got, test.ran)
		}
	}
}

func TestInterrupt(t *testing.T) {
	life := account.Life{Created: at(0), Bound: at(10), Since: at(20)}
	life.Interrupt(0, at(50))
	if life.Runs() {
		t.Error("runs after an interruption")
	}
	life.Since = at(70)
	if got, want := life.Sums(0, at(100)), (account.Sums{Running: 60, Waiting: 40}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := life.Ran(at(100)); got != 80*time.Second {
		t.Errorf("it began to run %v ago", got)
	}
	life.Interrupt(0, at(120))
	if got := life.Ran(at(130)); got != 110*time.Second {
		t.Errorf("it began to run %v ago, and does not run", got)
	}
}

// TestIdle checks that a pod that has a node and does not run is waiting for at most MaxIdle, in all.
func TestIdle(t *testing.T) {
	const most = 600
	for _, w := range []account.Window{0, account.Window(1e6 * time.Hour)} {
		life := account.Life{Created: at(0), Bound: at(100)}
		check := func(now, running, waiting float64, stuck bool) {
			t.Helper()
			s := life.Sums(w, at(now))
			if !near(s.Running, running, .01) || !near(s.Waiting, waiting, .01) || s.Binding != 0 || life.Stuck(at(now)) != stuck {
				t.Errorf("window %v, after %v s: %+v, stuck %t; want %v and %v", time.Duration(w), now, s, life.Stuck(at(now)), running, waiting)
			}
		}
		check(600, 0, 600, false)
		life.Begin(w, at(600))
		check(700, 100, 600, false)
		life.Interrupt(w, at(700))
		check(800, 100, 100+most, false)
		check(900, 100, 100+most, true)
		life.Begin(w, at(900))
		check(1000, 200, 100+most, false)
		life.Interrupt(w, at(1000))
		check(5000, 200, 100+most, true)
		life.Ended = at(5000)
		check(6000, 200, 100+most, false)
	}
}

// TestSumsAreTheAge checks that running, waiting and binding are all of a pod's age,
// whatever its times are, and none of them negative.
func TestSumsAreTheAge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() time.Time {
		if random.IntN(3) == 0 {
			return time.Time{}
		}
		return at(random.Float64() * 100)
	}
	for range 10_000 {
		life := account.Life{
			Created: at(random.Float64() * 50), Bound: some(), Reserved: some(), Since: some(), Ended: some(),
			Binding: time.Duration(random.Float64() * float64(10*time.Second)),
		}
		w, now := account.Window(random.IntN(2)*100)*account.Window(time.Second), at(random.Float64()*100)
		end := now
		if !life.Ended.IsZero() && life.Ended.Before(now) {
			end = life.Ended
		}
		got := life.Sums(w, now)
		if want := w.Weigh(life.Created, end, now); !near(got.Total(), want, 1e-9) || got.Running < 0 || got.Waiting < 0 || got.Binding < 0 {
			t.Fatalf("%+v at %v: %+v, age %v", life, now, got, want)
		}
	}
}

func TestTogether(t *testing.T) {
	runs := []account.Interval{{at(10), at(100)}, {at(5), at(45)}}
	for name, test := range map[string]struct {
		replicas        int
		from, to        float64
		together, alone float64
	}{
		"published":     {2, 0, 100, 70, 60},
		"one is enough": {1, 0, 100, 130, 0},
		"three":         {3, 0, 100, 0, 130},
		"a part":        {2, 20, 50, 50, 5},
		"empty":         {2, 50, 50, 0, 0},
	} {
		together, alone := account.Together(runs, nil, test.replicas, at(test.from), at(test.to), 0, at(200))
		if together != test.together || alone != test.alone {
			t.Errorf("%s: %v and %v, want %v and %v", name, together, alone, test.together, test.alone)
		}
	}
}

// The cases that the design has figures for, as sums.
var (
	average    = account.Sums{Running: 130, Waiting: 68, Binding: 2}
	aggregate  = account.Sums{Running: 90, Lost: 40, Waiting: 68, Binding: 2}
	victim     = account.Sums{Lost: 130, Waiting: 68, Binding: 2}
	concurrent = account.Sums{Running: 70, Lost: 60, Waiting: 68, Binding: 2}
	alone      = account.Sums{Running: 90, Waiting: 9, Binding: 1}
	two        = account.Sums{Running: 200, Waiting: 2, Binding: 2}
	half       = account.Sums{Running: 100, Waiting: 1, Binding: 1}
)

func TestMetric(t *testing.T) {
	inf := math.Inf(1)
	for name, test := range map[string]struct {
		slo       float64
		measuring account.Measuring
		c         account.Case
		service   float64
		metric    float64
		overhead  float64
	}{
		"A, pending, .5":    {.5, account.Average, account.Case{Sums: average, Running: 1, Pending: 1, BindingPerPod: 2. / 3}, .65, inf, .015152},
		"A, pod 1, .5":      {.5, account.Average, account.Case{Sums: average, Running: 1, Pending: 1, Runs: true, BindingPerPod: 2. / 3}, .65, 29.3333, .015152},
		"A, pending, .9":    {.9, account.Average, account.Case{Sums: average, Running: 1, Pending: 1, BindingPerPod: 2. / 3}, .65, -56.2222, .015152},
		"A, aggregate, .5":  {.5, account.Aggregate, account.Case{Sums: aggregate, Running: 1, Pending: 1, BindingPerPod: 2. / 3}, .45, -20.6667, .318182},
		"A, aggregate, .9":  {.9, account.Aggregate, account.Case{Sums: aggregate, Running: 1, Pending: 1, BindingPerPod: 2. / 3}, .45, -100.6667, .318182},
		"A, victim, .5":     {.5, account.Aggregate, account.Case{Sums: victim, Running: 1, Pending: 1, Runs: true, BindingPerPod: 2. / 3}, 0, -200.6667, 1},
		"A, concurrent, .5": {.5, account.Concurrent, account.Case{Sums: concurrent, Running: 1, Pending: 1, Replicas: 2, BindingPerPod: 2. / 3}, .35, -60.6667, .015152},
		"A, concurrent, .9": {.9, account.Concurrent, account.Case{Sums: concurrent, Running: 1, Pending: 1, Replicas: 2, BindingPerPod: 2. / 3}, .35, -122.8889, .015152},
		"A, alone, .5":      {.5, account.Independent, account.Case{Sums: alone, Running: 1, Runs: true, BindingPerPod: 1}, .9, 79, .010989},
		"A, alone, .9":      {.9, account.Independent, account.Case{Sums: alone, Running: 1, Runs: true, BindingPerPod: 1}, .9, -1, .010989},
		"B":                 {.8, account.Average, account.Case{Sums: account.Sums{Waiting: 30}, Pending: 1, BindingPerPod: account.FirstBinding}, 0, -32.4, 0},
		"B, independent":    {.8, account.Independent, account.Case{Sums: account.Sums{Waiting: 30}, Pending: 1, BindingPerPod: account.FirstBinding}, 0, -32.4, 0},
		"B, aggregate":      {.8, account.Aggregate, account.Case{Sums: account.Sums{Waiting: 30}, Pending: 1, BindingPerPod: account.FirstBinding}, 0, -32.4, 0},
		"B, concurrent":     {.8, account.Concurrent, account.Case{Sums: account.Sums{Waiting: 30}, Pending: 1, BindingPerPod: account.FirstBinding}, 0, -32.4, 0},
		"C, average":        {.5, account.Average, account.Case{Sums: two, Running: 2, Runs: true, BindingPerPod: 1}, .980392, inf, .009901},
		"C, concurrent":     {.5, account.Concurrent, account.Case{Sums: two, Running: 2, Runs: true, Replicas: 2, BindingPerPod: 1}, .980392, 98, .009901},
		"C, independent":    {.5, account.Independent, account.Case{Sums: half, Running: 1, Runs: true, BindingPerPod: 1}, .980392, 97, .009901},
		"as promised":       {.5, account.Average, account.Case{Sums: account.Sums{Running: 50, Waiting: 50}, Pending: 1, BindingPerPod: 1}, .5, 0, 0},
		"no time":           {.5, account.Average, account.Case{Pending: 1, BindingPerPod: account.FirstBinding}, 0, -2.4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			terms := account.Terms{SLO: test.slo, Measuring: test.measuring, Overhead: 1}
			if got := test.c.Sums.Service(); !near(got, test.service, 5e-7) {
				t.Errorf("service %v, want %v", got, test.service)
			}
			if got := terms.Metric(test.c, 0); !near(got, test.metric, 5e-5) {
				t.Errorf("metric %v, want %v", got, test.metric)
			}
			if got := terms.PreemptionOverhead(test.c.Sums); !near(got, test.overhead, 5e-7) {
				t.Errorf("overhead %v, want %v", got, test.overhead)
			}
		})
	}
}

// TestLongWindow checks that the metric with a long window is the published one.
func TestLongWindow(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		c := account.Case{
			Sums:    account.Sums{Running: random.Float64() * 1000, Waiting: random.Float64() * 1000, Binding: random.Float64()},
			Running: random.IntN(5), Pending: random.IntN(5), BindingPerPod: random.Float64(),
		}
		for _, measuring := range account.Measurings {
			terms := account.Terms{SLO: .01 + .99*random.Float64(), Measuring: measuring}
			long, published := terms.Metric(c, account.Window(1e6*time.Hour)), terms.Metric(c, 0)
			if !near(long, published, 1e-2) && !near(long/published, 1, 1e-4) {
				t.Fatalf("%+v %+v: %v with a long window, published %v", terms, c, long, published)
			}
		}
	}
}

// TestWindowedMetricIsTrue plays what the metric foretells: after so many seconds without the
// judged pod, the service is what was promised.
func TestWindowedMetricIsTrue(t *testing.T) {
	for _, w := range []account.Window{0, account.Window(10 * time.Minute)} {
		// One pod ran for 1000 s and waits; another waits, too.
		one := account.Life{Created: at(0), Bound: at(0), Since: at(0)}
		one.Interrupt(w, at(1000))
		other := account.Life{Created: at(600)}
		now := at(1000)
		sums := one.Sums(w, now).Plus(other.Sums(w, now))
		terms := account.Terms{SLO: .5, Measuring: account.Average}
		metric := terms.Metric(account.Case{Sums: sums, Pending: 2}, w)
		if math.IsInf(metric, 0) || metric <= 0 {
			t.Fatalf("metric %v", metric)
		}
		then := at(1000 + metric)
		if got := one.Sums(w, then).Plus(other.Sums(w, then)).Service(); !near(got, .5, 1e-6) {
			t.Errorf("window %v: the service after %v s is %v", time.Duration(w), metric, got)
		}
	}
}

func TestAccepts(t *testing.T) {
	for _, test := range []struct {
		slo, overhead, binding float64
		want                   bool
	}{
		{.9, 1, 10, true}, {.9, 1, 11, false}, {.5, .05, 6, false}, {.5, .05, 5, true}, {1, 1, 0, true}, {1, 1, 1, false},
	} {
		terms := account.Terms{SLO: test.slo, Overhead: test.overhead}
		if got := terms.Accepts(account.Sums{Binding: test.binding, Running: 100 - test.binding}); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// TestLeft has the published row of the debug table.
func TestLeft(t *testing.T) {
	ran := (2*time.Hour + 4*time.Minute + 6*time.Second).Seconds()
	if got := (account.Terms{SLO: .8}).Left(account.Sums{Running: ran}); !near(got, (31*time.Minute + 1500*time.Millisecond).Seconds(), 1e-6) {
		t.Errorf("left %v s", got)
	}
}

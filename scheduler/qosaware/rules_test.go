package qosaware

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

func someRules() rules {
	return newRules(&config.QosAwareArgs{
		SafetyMargin: metav1.Duration{Duration: 30 * time.Second}, MinimumRunningTime: metav1.Duration{Duration: time.Minute}, LongWait: metav1.Duration{Duration: time.Hour},
	})
}

func TestPreempts(t *testing.T) {
	waiting := func(slo, metric float64) ledger.Judgement {
		j := judged(slo, metric)
		j.Workload = ledger.Key{Namespace: "team", Name: "waiting"}
		return j
	}
	running := func(slo, metric float64, ran time.Duration) ledger.Judgement {
		j := judged(slo, metric)
		j.Workload, j.Runs, j.Ran = ledger.Key{Namespace: "team", Name: "running"}, true, ran
		j.Sums = account.Sums{Running: 95, Binding: 5}
		return j
	}
	incomplete := func(j ledger.Judgement) ledger.Judgement { // as long as it ran
		j.Terms.Measuring, j.GainsNothing = account.Concurrent, true
		return j
	}
	with := func(j ledger.Judgement, measuring account.Measuring) ledger.Judgement {
		j.Terms.Measuring = measuring
		return j
	}
	same := func(j ledger.Judgement) ledger.Judgement {
		j.Workload.Name = "waiting"
		return j
	}
	refusedOne := func(j ledger.Judgement) ledger.Judgement {
		j.Refused = true
		return j
	}
	held := func(j ledger.Judgement, held time.Duration) ledger.Judgement {
		j.Refused, j.Held = true, held
		return j
	}
	turn := refusedOne(waiting(.1, -500))
	turn.Waited = time.Hour
	const long, short = time.Minute, 59 * time.Second
	for name, test := range map[string]struct {
		p, v ledger.Judgement
		want reason
	}{
		"victim is safe":                     {waiting(.5, 0), running(.5, 30, long), secure},
		"victim is safe, ran briefly":        {waiting(.5, 0), running(.5, 30, short), notAllowed},
		"victim is safe, larger SLO":         {waiting(.3, 0), running(.9, 30, long), secure},
		"both urgent, larger SLO":            {waiting(.9, 20), running(.5, -50, short), largerSLO},
		"both urgent, smaller SLO":           {waiting(.3, -50), running(.5, 20, long), notAllowed},
		"both urgent, more behind":           {waiting(.5, -50), running(.5, 20, long), overhead},
		"both urgent, more behind, briefly":  {waiting(.5, -50), running(.5, 20, short), notAllowed},
		"both urgent, less behind":           {waiting(.5, 20), running(.5, -50, long), notAllowed},
		"both urgent, overhead is too large": {waiting(.96, -50), running(.96, 20, long), notAllowed},
		"neither urgent":                     {waiting(.5, 40), running(.5, 50, long), secure},
		"neither urgent, later":              {waiting(.5, 60), running(.5, 50, long), notAllowed},
		"the same workload":                  {waiting(.5, 0), same(running(.5, 30, long)), notAllowed},
		"the same workload, independent":     {with(waiting(.5, 0), account.Independent), same(with(running(.5, 30, long), account.Independent)), secure},
		"refused":                            {refusedOne(waiting(1, -500)), running(.5, 3000, long), notAllowed},
		"refused, its turn":                  {turn, running(1, 30, long), byTurn},
		"refused, its turn, victim urgent":   {turn, running(.5, 29, long), notAllowed},
		"refused, its turn, ran briefly":     {turn, running(.5, 3000, short), notAllowed},
		"refused, its turn, victim refused":  {turn, held(running(1, -500, 0), long), byTurn},
		"victim refused":                     {waiting(.1, 0), held(running(1, -500, 0), long), refused},
		"victim refused, placed briefly ago": {waiting(.1, 0), held(running(1, -500, long), short), notAllowed},
		"victim refused, not urgent":         {waiting(.1, 30), held(running(1, -500, long), long), notAllowed},
		"in vain":                            {waiting(.1, 20), incomplete(running(.9, -50, long)), inVain},
		"in vain, but briefly":               {waiting(.1, 20), incomplete(running(.9, -50, short)), notAllowed},
		"in vain, and nobody needs it":       {waiting(.1, 500), incomplete(running(.9, -50, long)), notAllowed},
		"both in vain":                       {with(waiting(.1, 20), account.Concurrent), incomplete(running(.9, -50, long)), notAllowed},
		"in vain, before it":                 {with(waiting(.95, 5), account.Concurrent), incomplete(running(.9, -50, long)), inVain},
	} {
		r := someRules()
		r.turns.others.Store(oneOf - 1)
		if got := r.preempts(&test.p, &test.v); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestTurns checks that one of ten places is for who waited for long, also if several get one at
// once.
func TestTurns(t *testing.T) {
	turns := &turns{}
	pass := func(n int) {
		for range n {
			turns.pass()
		}
	}
	if pass(8); turns.open() {
		t.Error("open after eight")
	}
	if pass(100); !turns.open() {
		t.Error("not open after nine")
	}
	turns.take()
	turns.take()
	if pass(17); turns.open() {
		t.Error("two had their turn, and the next one is before 18 others")
	}
	if pass(1); !turns.open() {
		t.Error("not open after 18")
	}
	r := someRules()
	r.turns.others.Store(oneOf - 1)
	waited := ledger.Judgement{Refused: true, Waited: time.Hour}
	soon := ledger.Judgement{Refused: true, Waited: time.Hour - 1}
	if !r.turn(&waited) || r.turn(&soon) || r.turn(&ledger.Judgement{Waited: time.Hour}) || r.compare(&waited, &soon) >= 0 {
		t.Error("it is not the turn of who waited for long")
	}
}

// TestNoTurns checks that of two pods only one may preempt the other, so that they do not take
// turns, unless one of them gains nothing.
func TestNoTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	metrics := []float64{math.Inf(1), 0, 30, -20, 100, 29}
	some := func(name string) ledger.Judgement {
		j := judged([]float64{.3, .5, 1}[random.IntN(3)], metrics[random.IntN(len(metrics))])
		j.Workload.Name, j.Ran, j.Runs = name, time.Hour, true
		return j
	}
	for range 10_000 {
		a, b := some("a"), some("b")
		r := someRules()
		if r.preempts(&a, &b) != notAllowed && r.preempts(&b, &a) != notAllowed {
			t.Fatalf("%+v and %+v take turns", a, b)
		}
		c := some("c")
		if r.compare(&a, &b) < 0 && r.compare(&b, &c) < 0 && r.compare(&a, &c) >= 0 {
			t.Fatalf("not transitive: %+v, %+v, %+v", a, b, c)
		}
	}
}

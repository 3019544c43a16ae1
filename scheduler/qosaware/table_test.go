package qosaware

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// TestTable has published rows.
func TestTable(t *testing.T) {
	row := func(namespace, name string, slo float64, left time.Duration, s account.Sums) ledger.Row {
		return ledger.Row{Workload: ledger.Key{Namespace: namespace, Name: name}, Terms: account.Terms{SLO: slo, Measuring: account.Average, Overhead: 1}, Sums: s, Left: left.Seconds()}
	}
	long := (2*time.Hour + 4*time.Minute + 6*time.Second).Seconds()
	rows := []ledger.Row{
		row("default", "", .8, 31*time.Minute+1500*time.Millisecond, account.Sums{Running: long}),
		row("default", "50_slo_1", .5, -(2*time.Minute + 22*time.Second + 541*time.Millisecond), account.Sums{Running: 493.9, Waiting: 636.7, Binding: .5912}),
		row("team", "web", .5, 0, account.Sums{}),
	}
	rows[1].Refused = true
	var got strings.Builder
	if err := writeTable(&got, rows); err != nil {
		t.Fatal(err)
	}
	want := `          CONTROLLER    QOS/SLO                   TTV               RUNNING               WAITING               BINDING  ADMITTED
                      1.00/0.80                 31m1s                2h4m6s                    0s                    0s       yes
            50_slo_1  0.44/0.50            -2m22.541s                 8m13s                10m36s                 591ms        no
            team/web  0.00/0.50                    0s                    0s                    0s                    0s       yes
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
	rows[2].Pods = []ledger.PodRow{{Name: "web-1", Phase: "running", Judgement: ledger.Judgement{Terms: rows[2].Terms, Metric: math.Inf(1), Overhead: .25, Sums: account.Sums{Lost: 3}}}}
	got.Reset()
	if err := writeWide(&got, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(got.String()), "\n")
	if len(lines) != 2 || strings.Join(strings.Fields(lines[1]), " ") != "team/web web-1 running average 0.00/0.50 never 0.250/0.500 0s 3s 0s 0s yes" {
		t.Errorf("wide:\n%s", &got)
	}
}

package ledger_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/account"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

func packed(text string) []byte {
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return buffer.Bytes()
}

func save(t testing.TB, l *lab) []byte {
	t.Helper()
	l.Dirty()
	data, err := l.Save()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestRestart checks that a Ledger that is made of a saved state and of the pods that exist is
// the one that was saved: nothing is lost and nothing counted twice, however often.
func TestRestart(t *testing.T) {
	for _, window := range []time.Duration{0, 10 * time.Minute} {
		for _, measuring := range account.Measurings {
			set := func(a *config.QosAwareArgs) { a.Window = metav1.Duration{Duration: window} }
			before := newLab(set)
			first, successor := caseA(before, ".5", measuring)
			data := save(t, before)
			before.to(200)
			want := before.Rows(false)[0]
			for restart := range 3 {
				after := newLab(set)
				after.to(150 + restart)
				if _, err := after.Load(data, true); err != nil {
					t.Fatal(err)
				}
				for _, p := range []*v1.Pod{successor, bound(first, 10)} {
					if err := after.Observe(p); err != nil {
						t.Fatal(err)
					}
				}
				data = save(t, after)
				after.to(200)
				got := after.Rows(false)
				if len(got) != 1 {
					t.Fatalf("%s: %+v", measuring, got)
				}
				// What the binding of a pod that exists took is not in the API.
				if math.Abs(got[0].Sums.Service()-want.Sums.Service()) > .01 || math.Abs(got[0].Sums.Total()-want.Sums.Total()) > 1e-3 {
					t.Errorf("%s, window %v, restart %d: %+v, want %+v", measuring, window, restart, got[0].Sums, want.Sums)
				}
				if got[0].Terms != want.Terms {
					t.Errorf("terms %+v, want %+v", got[0].Terms, want.Terms)
				}
			}
		}
	}
}

// TestTakeOver checks that a process that followed the pods while another one bound them
// counts nothing twice when it takes over.
func TestTakeOver(t *testing.T) {
	leader, standby := newLab(), newLab()
	caseA(leader, ".5", account.Average)
	caseA(standby, ".5", account.Average)
	if _, err := standby.Load(save(t, leader), false); err != nil {
		t.Fatal(err)
	}
	if got, want := standby.Rows(false)[0].Sums, leader.Rows(false)[0].Sums; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	late, leader := newLab(), newLab()
	first, successor := caseA(leader, ".5", account.Average)
	late.to(100) // it was started after pod-2 was gone, and has one of the others
	_ = late.Observe(bound(first, 10))
	if _, err := late.Load(save(t, leader), false); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the other one comes, and changes nothing: the leader had it
		if got := measured(late.Rows(false)[0].Sums); got != [4]float64{130, 0, 68, 2} {
			t.Errorf("%v", got)
		}
		_ = late.Observe(successor)
	}
}

// TestKilled has a process end without a word some time after it saved its state, and another
// one find the pods that are left: of those that are gone only what came after the state is
// lost, and of the others nothing, however often that happens.
func TestKilled(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	const end = 600 // less than account.MaxIdle, which is not saved
	lost := 0
	for range 2000 {
		measuring, measureFrom, window, set := anySettings(random)
		pods, _, _ := history(random, measuring, end)
		var events []event
		for i, own := range pods {
			if last := own[len(own)-1]; random.IntN(2) == 0 && last.when < end { // its object goes
				when := last.when + random.IntN(end-last.when)
				name := fmt.Sprint("p", i)
				own = append(own, event{when, func(l *lab) {
					if p := l.objects[name]; p != nil {
						delete(l.objects, name)
						l.Finish(p.UID, l.Remove(p))
					}
				}})
			}
			events = append(events, own...)
		}
		slices.SortStableFunc(events, func(a, b event) int { return a.when - b.when })
		lived := newLab(set)
		playing := lived
		next := 0
		play := func(until int, labs ...*lab) {
			for ; next < len(events) && events[next].when <= until; next++ {
				for _, l := range labs {
					l.to(events[next].when)
					events[next].do(l)
				}
			}
			for _, l := range labs {
				l.to(until)
			}
		}
		// What may be lost: what pods got between a state and the end of the process, if they
		// are gone or not ready any more then.
		allowed := 0.
		for now := 0; now < end-100; {
			now += 100 + random.IntN(300)
			play(min(now, end-100), lived, playing)
			data := save(t, playing)
			now = min(now, end-100) + random.IntN(100)
			from := next
			play(now, lived, playing)
			allowed += float64((next - from) * 100)
			restarted := newLab(set)
			restarted.to(now)
			if _, err := restarted.Load(data, true); err != nil {
				t.Fatal(err)
			}
			for name, p := range lived.objects {
				restarted.objects[name] = p
				_ = restarted.Observe(p)
			}
			playing = restarted
		}
		play(end, lived, playing)
		a, b := account.Sums{}, account.Sums{}
		for _, row := range lived.Rows(false) {
			a = a.Plus(row.Sums)
		}
		for _, row := range playing.Rows(false) {
			b = b.Plus(row.Sums)
		}
		const rounded = .1
		if difference := a.Total() - b.Total(); difference < -rounded || difference > allowed+rounded {
			t.Fatalf("%s, %s, window %v: %v, and after restarts %v: more than %v are lost, or seconds count twice", measuring, measureFrom, window.Duration, a, b, allowed)
		} else if difference > rounded {
			lost++
		}
		if difference := math.Abs(a.Running + a.Lost - b.Running - b.Lost); difference > allowed+rounded {
			t.Fatalf("%s, %s, window %v: running %v, and after restarts %v: more than %v differ", measuring, measureFrom, window.Duration, a, b, allowed)
		}
	}
	if lost == 0 || lost > 1000 {
		t.Errorf("seconds were lost in %d of 2,000 histories", lost)
	}
}

// TestStrangeAccount has a saved account with less of the pods that exist than these have
// themselves, as if it were of others, and more: nothing becomes negative.
func TestStrangeAccount(t *testing.T) {
	for name, test := range map[string]struct {
		live string
		want [4]float64
	}{
		"less": {`"live":4`, [4]float64{10 - 4 + 100, 0, 5, 0}},
		"all":  {`"live":15`, [4]float64{10 - 15 + 100, 0, 5, 0}},
		"none": {`"live":0`, [4]float64{10 + 100, 0, 5, 0}},
	} {
		l := newLab()
		l.to(100)
		text := strings.Replace(workload, `"running":10`, `"running":10,`+test.live, 1)
		if _, err := l.Load(packed(fmt.Sprintf(`{"version":1,"time":%d,"workloads":[%s]}`, at(50).Unix(), text)), true); err != nil {
			t.Fatal(err)
		}
		p := bound(promised("p", 0, ".5", account.Average), 0)
		for range 2 {
			_ = l.Observe(p)
			if got := measured(l.Rows(false)[0].Sums); got != test.want {
				t.Errorf("%s: %v, want %v", name, got, test.want)
			}
		}
	}
}

// TestTakeOverTakesTheFullerAccount checks which of two accounts of the same pods counts.
func TestTakeOverTakesTheFullerAccount(t *testing.T) {
	ended := func(pods ...int) *lab {
		l := newLab()
		for _, i := range pods {
			p := promised(fmt.Sprint("p", i), 10*i, ".5", account.Average)
			l.to(10 * i)
			_ = l.Observe(p)
			l.to(10*i + 10)
			l.Remove(p)
		}
		return l
	}
	for name, test := range map[string]struct{ saved, own, want []int }{
		"saved by one that saw more": {[]int{1, 2}, []int{2}, []int{1, 2}},
		"saved long ago":             {[]int{1, 2}, []int{1, 2, 3}, []int{1, 2, 3}},
	} {
		own := ended(test.own...)
		if _, err := own.Load(save(t, ended(test.saved...)), false); err != nil {
			t.Fatal(err)
		}
		if got, want := measured(own.Rows(false)[0].Sums), float64(10*len(test.want)); got != [4]float64{0, 0, want, 0} {
			t.Errorf("%s: %v, want %v s of waiting", name, got, want)
		}
	}
}

// TestTakeOverConcurrent has the process that takes over have settled running time that the
// saved state does not have yet: the time between is not lost.
func TestTakeOverConcurrent(t *testing.T) {
	leader, standby := newLab(), newLab()
	for i := range 2 {
		p := bound(promised(fmt.Sprint("p", i), 0, ".5", account.Concurrent), 0)
		_ = leader.Observe(p)
		_ = standby.Observe(p)
	}
	gone := promised("gone", 0, ".5", account.Concurrent)
	_ = leader.Observe(gone)
	leader.to(5)
	leader.Remove(gone)
	leader.to(50)
	data := save(t, leader)
	standby.to(60)
	save(t, standby)
	if _, err := standby.Load(data, false); err != nil {
		t.Fatal(err)
	}
	standby.to(70)
	if got := measured(standby.Rows(false)[0].Sums); got != [4]float64{140, 0, 5, 0} {
		t.Errorf("%v", got)
	}
}

// TestMeasuringChanged checks that a saved state of another measuring is not added up.
func TestMeasuringChanged(t *testing.T) {
	before, after := newLab(), newLab()
	caseA(before, ".5", account.Concurrent)
	after.to(100)
	_ = after.Observe(promised("younger", 90, ".5", account.Average))
	if _, err := after.Load(save(t, before), true); err != nil {
		t.Fatal(err)
	}
	if got := measured(after.Rows(false)[0].Sums); got != [4]float64{0, 0, 10, 0} {
		t.Errorf("%v", got)
	}
}

const workload = `{"namespace":"team","kind":"ReplicaSet","name":"web","uid":"rs","slo":0.5,"measuring":"average","overhead":1,"stated":1,"by":"p","running":10,"waiting":5,"gone":1}`

func TestLoadRefuses(t *testing.T) {
	good := `{"version":1,"time":1767225600,"workloads":[` + workload + `]}`
	if _, err := newLab().Load(packed(good), true); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":              {nil, "damaged"},
		"not compressed":       {[]byte(good), "damaged"},
		"cut":                  {packed(good)[:60], "damaged"},
		"not JSON":             {packed("{"), "damaged"},
		"newer version":        {packed(`{"version":2,"workloads":{}}`), "version 2, and this scheduler reads version 1"},
		"no version":           {packed(`{}`), "version 0"},
		"too large":            {make([]byte, 1<<20), "1048576 bytes"},
		"a bomb":               {packed(strings.Repeat(" ", 32<<20)), "uncompressed"},
		"time":                 {packed(strings.Replace(good, `1767225600`, `-1`, 1)), "time"},
		"10,001 workloads":     {packed(`{"version":1,"workloads":[` + strings.Repeat(workload+",", 10_000) + workload + `]}`), "10001 workloads"},
		"a number of no range": {packed(strings.Replace(good, `"gone":1`, `"gone":1e99`, 1)), "damaged"},
	} {
		l := newLab()
		_, err := l.Load(test.data, true)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want ... %s ...", name, err, test.want)
		}
		if rows := l.Rows(false); len(rows) > 0 {
			t.Errorf("%s: it was used: %+v", name, rows)
		}
	}
}

// TestLoadSkips checks that a workload with which something is wrong does not cost the others
// their account, and that honest large numbers are taken.
func TestLoadSkips(t *testing.T) {
	other := strings.NewReplacer(`"name":"web"`, `"name":"other"`, `"uid":"rs"`, `"uid":"other"`).Replace(workload)
	load := func(from, to string) (skipped int, rows []ledger.Row) {
		t.Helper()
		changed := strings.Replace(workload, from, to, 1)
		if changed == workload {
			t.Fatalf("nothing is changed: %s", from)
		}
		l := newLab()
		skipped, err := l.Load(packed(`{"version":1,"time":1767225600,"workloads":[`+changed+`,`+other+`]}`), true)
		if err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		return skipped, l.Rows(false)
	}
	for name, change := range map[string][2]string{
		"negative":          {`"running":10`, `"running":-10`},
		"enormous":          {`"running":10`, `"running":1e300`},
		"SLO":               {`"slo":0.5`, `"slo":5`},
		"SLO of 0":          {`"slo":0.5`, `"slo":0`},
		"stated later":      {`"stated":1`, `"stated":1767312001`},
		"measuring":         {`average`, `sum`},
		"no name":           {`"name":"web"`, `"name":""`},
		"long name":         {`"name":"web"`, `"name":"` + strings.Repeat("x", 254) + `"`},
		"long kind":         {`ReplicaSet`, strings.Repeat("x", 254)},
		"a row of its own":  {`"name":"web"`, `"name":"web\n  mine 1.00/1.00"`},
		"controls terminal": {`"kind":"ReplicaSet"`, `"kind":"\u001b[2J"`},
	} {
		if skipped, rows := load(change[0], change[1]); skipped != 1 || len(rows) != 1 || rows[0].Workload.Name != "other" {
			t.Errorf("%s: %d skipped, %+v", name, skipped, rows)
		}
	}
	if skipped, rows := load(`"running":10`, `"running":5e11`); skipped != 0 || len(rows) != 2 {
		t.Errorf("5,000 pods of three years: %d skipped, %+v", skipped, rows)
	}
}

// TestOwnersOfTenants checks that nothing that a tenant writes makes the state unusable.
func TestOwnersOfTenants(t *testing.T) {
	l := newLab(func(a *config.QosAwareArgs) { a.LegacyAnnotations = true })
	wrong := []string{strings.Repeat("x", 254), "a\nb", "a\tb", "a b", "\x1b[2J", "\xff"}
	for i, text := range wrong {
		for j, set := range []func(*v1.Pod){
			func(p *v1.Pod) { p.OwnerReferences[0].Kind = text },
			func(p *v1.Pod) { p.OwnerReferences[0].Name = text },
			func(p *v1.Pod) { p.OwnerReferences[0].UID = types.UID(text) },
			func(p *v1.Pod) { p.OwnerReferences, p.Annotations["controller"] = nil, text },
		} {
			p := promised(fmt.Sprintf("p%d-%d", i, j), 0, ".5", account.Concurrent) // saved while they exist
			set(p)
			if err := l.Observe(p); (err == nil) != (j < 3) {
				t.Errorf("%q: %v", text, err)
			}
			if judged, _ := l.Judge(p, l.Now()); judged.Workload != (ledger.Key{Namespace: "team", Kind: "Pod", Name: p.Name, UID: p.UID}) {
				t.Errorf("%q: the workload is %+v", text, judged.Workload)
			}
		}
	}
	_ = l.Observe(promised("fine", 0, ".5", account.Concurrent))
	after := newLab()
	if skipped, err := after.Load(save(t, l), true); err != nil || skipped != 0 {
		t.Errorf("%d skipped, %v", skipped, err)
	}
	if rows := after.Rows(false); len(rows) != 1 || rows[0].Workload.Name != "web" { // a pod without owner has no successor
		t.Errorf("%+v", rows)
	}
}

// TestSaveIsBounded checks that a state fits into a ConfigMap, and what is left out of it.
func TestSaveIsBounded(t *testing.T) {
	l := newLab()
	name := func(i int) string { return fmt.Sprintf("%064x", uint64(i)*0x9E3779B97F4A7C15) }
	for i := range 12_000 {
		p := promised(name(i), i, ".5", account.Average)
		p.OwnerReferences[0].UID = types.UID(name(i)) // each is a workload
		p.OwnerReferences[0].Name = name(i)
		l.to(i)
		_ = l.Observe(p)
		l.to(i + 1)
		l.Remove(p)
	}
	data, err := l.Save()
	if err != nil || data == nil || len(data) > 900_000 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	if l.Changed() {
		t.Error("to be saved again although nothing happened")
	}
	if data, err := newLab().Save(); data != nil || err != nil {
		t.Errorf("nothing is saved as %d bytes, %v", len(data), err)
	}
	after := newLab()
	after.to(20_000)
	if _, err := after.Load(data, true); err != nil {
		t.Fatal(err)
	}
	rows := after.Rows(false)
	if len(rows) > 10_000 || len(rows) < 5_000 {
		t.Errorf("%d workloads", len(rows))
	}
	l.Forget()
	if n := len(l.Rows(false)); n != 10_000 {
		t.Errorf("%d workloads without pods are kept", n)
	}
	last := "team/" + name(11_999)
	found := false
	for _, row := range l.Rows(false) {
		if row.Workload.String() == "team/"+name(1_999) {
			t.Error("one of the oldest was kept")
		}
	}
	for _, row := range rows {
		found = found || row.Workload.String() == last
	}
	if !found {
		t.Error("the newest was left out")
	}
}

func TestForget(t *testing.T) {
	for window, day := range map[time.Duration]int{0: 7, 24 * time.Hour: 1} {
		l := newLab(func(a *config.QosAwareArgs) { a.Window = metav1.Duration{Duration: window} })
		stays, goes := promised("stays", 0, ".5", account.Average), promised("goes", 0, ".5", account.Average)
		goes.OwnerReferences[0].Name, goes.OwnerReferences[0].UID = "another", "another"
		_ = l.Observe(stays)
		_ = l.Observe(goes)
		l.Remove(goes)
		l.to(day*86400 - 1)
		if l.Forget(); len(l.Rows(false)) != 2 {
			t.Errorf("window %v: forgotten too soon", window)
		}
		l.to(day * 86400)
		if l.Forget(); len(l.Rows(false)) != 1 {
			t.Errorf("window %v: not forgotten", window)
		}
	}
}

// TestPodsWithoutOwner checks that nothing is left of a pod that nobody makes again.
func TestPodsWithoutOwner(t *testing.T) {
	for _, measuring := range account.Measurings {
		l := newLab()
		p := bound(promised("p", 0, ".5", measuring), 0)
		p.OwnerReferences = nil
		_ = l.Observe(p)
		l.to(10)
		if ask := l.Remove(p); ask {
			if len(l.Rows(false)) != 1 {
				t.Errorf("%s: forgotten before it is known how it ended", measuring)
			}
			l.Finish(p.UID, true)
		}
		if rows := l.Rows(false); len(rows) != 0 {
			t.Errorf("%s: %+v", measuring, rows)
		}
		if s := l.Seconds(); s.Total() != 10 {
			t.Errorf("%s: %+v", measuring, s)
		}
	}
}

func FuzzLoad(f *testing.F) {
	l := newLab()
	caseA(l, ".5", account.Concurrent)
	f.Add(save(f, l), true)
	f.Add(packed(`{"version":1,"time":1,"workloads":[`+workload+`]}`), false)
	f.Add(packed(`{"version":1,"time":1767225605,"workloads":[`+strings.Replace(workload, `"gone"`, `"live":7,"gone"`, 1)+`]}`), true)
	f.Fuzz(func(t *testing.T, data []byte, own bool) {
		for _, data := range [][]byte{data, packed(string(data))} {
			l := newLab()
			l.to(10)
			p := promised("p", 0, ".5", account.Average)
			_ = l.Observe(p)
			if _, err := l.Load(data, own); err != nil {
				continue
			}
			for _, row := range l.Rows(true) {
				if s := row.Sums.Service(); !(s >= 0 && s <= 1) {
					t.Errorf("%+v", row)
				}
			}
			save(t, l)
		}
	})
}

func FuzzAnnotations(f *testing.F) {
	f.Add("0.5", "average", "1", "name")
	f.Add("NaN", "", "-0", strings.Repeat("x", 300))
	f.Fuzz(func(t *testing.T, slo, measuring, overhead, controller string) {
		for _, legacy := range []bool{false, true} {
			l := newLab(func(a *config.QosAwareArgs) { a.LegacyAnnotations = legacy })
			p := aPod("p", 0, ledger.AnnotationSLO, slo, ledger.AnnotationMeasuring, measuring, ledger.AnnotationOverhead, overhead, "controller", controller)
			if err := l.Observe(p); err != nil && len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			l.to(10)
			j, ok := l.Judge(p, l.Now())
			if ok != l.TakesPart(p) {
				t.Error("judged, but takes no part")
			}
			if ok && (!(j.Terms.SLO > 0 && j.Terms.SLO <= 1) || math.IsNaN(j.Metric) || !(j.Terms.Overhead >= 0 && j.Terms.Overhead <= 1)) {
				t.Errorf("%+v", j)
			}
		}
	})
}

package qos

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// values returns n values, the first ones below .5.
func values(n, below int, least float64) []float64 {
	all := make([]float64, n)
	for i := range all {
		if all[i] = .5; i < below {
			all[i] = least
		}
	}
	return all
}

func measured() *Result {
	r := &Result{Settings: Settings{Scale: 6, Minutes: 5, Nodes: 20}}
	for _, arm := range Arms {
		o := Outcome{Arm: arm.Name, Seconds: 300, Gold: values(100, 1, .4), Silver: values(arm.Silver, 0, 0), Service: .95}
		for i := range o.Gold {
			o.Gold[i] += .5
		}
		switch arm.Name {
		case "priorities-160":
			o.Silver = values(160, 58, 0)
		case qosaware + "-160":
			o.Restarts = &Restarts{Stopped: .004, Killed: .02}
			o.Preempted = map[string]int{"secure": 7, "overhead": 3}
		case qosaware + "-200":
			o.Silver = values(200, 90, .2)
			o.Gold[0] = .985
		}
		r.Outcomes = append(r.Outcomes, o)
	}
	r.Cost = &Costs{SortMicros: 3, AddedMicros: 1.5, AddedSLOMicros: 6, HeapMiB: 50, HeapPods: 50_000, HeapWorkloads: 5_000}
	return r
}

func TestWrite(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measured().Write(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := lines[len(lines)-1], "qosaware missed_priority=58 missed=0 service=0.950 gold_min=0.9000 overload_met=110 starved=0 added_us=1.50 added_slo_us=6.00 heap_mib=50.0 restart_error=0.0200"; got != want {
		t.Errorf("the last line is\n%s\nwant\n%s", got, want)
	}
	for want, n := range map[string]int{"goal met": 5, "goal missed": 4, "preempted, by reason: overhead 3 secure 7": 1, "after SIGKILL by 0.0200": 1} {
		if got := strings.Count(out.String(), want); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, n, &out)
		}
	}

	// What was not measured is not a figure.
	some := measured()
	some.Outcomes, some.Cost = some.Outcomes[:1], nil
	out.Reset()
	if err := some.Write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "qosaware missed_priority=58 missed=- service=- gold_min=- overload_met=- starved=- added_us=- added_slo_us=- heap_mib=- restart_error=-\n"; !strings.HasSuffix(out.String(), want) || strings.Contains(out.String(), "goal") {
		t.Errorf("%s", &out)
	}
}

func TestResultIsReadAgain(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(measured())
	if err != nil {
		t.Fatal(err)
	}
	var again Result
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatal(err)
	}
	var a, b bytes.Buffer
	if err := errors.Join(measured().Write(&a), again.Write(&b)); err != nil || a.String() != b.String() {
		t.Errorf("%v\n%s\n%s", err, &a, &b)
	}
}

func TestFigure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "figure.svg")
	if err := measured().draw(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]int{}
	for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if element, ok := token.(xml.StartElement); ok {
			drawn[element.Name.Local]++
			for _, a := range element.Attr {
				if a.Name.Local == "points" {
					drawn["points"] += len(strings.Fields(a.Value))
				}
			}
		}
	}
	if drawn["polyline"] != len(Arms) || drawn["points"] != 3*160+2*200 {
		t.Errorf("drawn are %v", drawn)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := Config{Settings: Settings{Scale: 6, Minutes: 5, Nodes: 20}, Measure: Names()}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"--scale 0.5":           func(c *Config) { c.Scale = .5 },
		"--scale NaN":           func(c *Config) { c.Scale = math.NaN() },
		"--minutes 0.1":         func(c *Config) { c.Minutes = .1 },
		"--nodes 0":             func(c *Config) { c.Nodes = 0 },
		"names nothing":         func(c *Config) { c.Measure = nil },
		`"x" is not one of pri`: func(c *Config) { c.Measure = []string{Cost, "x"} },
		"other settings":        func(c *Config) { c.Earlier = &Result{Settings: Settings{Scale: 6, Minutes: 1, Nodes: 20}} },
	} {
		c := good
		change(&c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// What is measured already is not measured again.
func TestResume(t *testing.T) {
	t.Parallel()
	c := Config{Settings: measured().Settings, Measure: Names(), Earlier: measured()}
	result, err := Run(t.Context(), c)
	if err != nil || len(result.Outcomes) != len(Arms) || result.Cost == nil {
		t.Errorf("%+v, %v", result, err)
	}
}

// The scheduler and kwok get what the scale makes of the published times.
func TestSettings(t *testing.T) {
	t.Parallel()
	c := Config{Settings: Settings{Scale: 6, Minutes: 5, Nodes: 20}}
	arm := Arms[slices.IndexFunc(Arms, func(a Arm) bool { return a.Pull > 0 })]
	settings := c.cluster(arm, "stages.yaml")
	text, err := yaml.Marshal(settings.Scheduler.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"safetyMargin: 5s", "minimumRunningTime: 5s", "reconsiderEvery: 1s", "maxPreemptionsPerMinute: 360", "longWait: 1m40s", "qps: 300"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !settings.ControlPlaneOnly || !strings.Contains(settings.Addons[0].Manifests, "layer-locality-scheduler-qosaware") {
		t.Errorf("%+v", settings)
	}
	if stock := c.cluster(Arms[0], "stages.yaml"); stock.Addons[0].Manifests != "" {
		t.Errorf("%+v", stock)
	}
	stages, err := c.stages(arm)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for document := range strings.SplitSeq(string(stages), "\n---\n") {
		var stage struct {
			Spec struct {
				ResourceRef struct{ Kind string }
				Delay       struct{ DurationMilliseconds int }
				Next        struct{ StatusTemplate string }
			}
		}
		if err := yaml.Unmarshal([]byte(document), &stage); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		kinds = append(kinds, stage.Spec.ResourceRef.Kind)
		if len(kinds) == 2 && (stage.Spec.Delay.DurationMilliseconds != 10_000 || !strings.Contains(stage.Spec.Next.StatusTemplate, `- {type: Ready, status: "True"`)) {
			t.Errorf("%+v", stage)
		}
	}
	if !slices.Equal(kinds, []string{"Node", "Pod", "Pod"}) {
		t.Errorf("stages of %q", kinds)
	}
}

// TestLedger plays the events of a watch: a workload's pod that waits, runs and is preempted,
// and its successor, which waits.
func TestLedger(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	l := newLedger(func() time.Time { return now })
	at := func(seconds float64) { now = time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second))) }
	pod := func(uid string, ready, ends bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Labels: map[string]string{workloadLabel: "silver-1"}}}
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if ends {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		return p
	}
	check := func(when, running, existed float64) {
		t.Helper()
		at(when)
		if got := l.services()["silver-1"]; math.Abs(got.running-running) > 1e-9 || math.Abs(got.existed-existed) > 1e-9 {
			t.Errorf("after %v s: %+v, want %v of %v", when, got, running, existed)
		}
	}
	l.OnAdd(pod("a", false, false), true)
	check(10, 0, 10)
	l.OnUpdate(nil, pod("a", true, false))
	check(25, 15, 25)
	at(30)
	l.OnUpdate(nil, pod("a", true, false)) // again
	l.OnUpdate(nil, pod("a", true, true))
	at(31)
	l.OnAdd(pod("b", false, false), false)
	if running, waiting := l.count(); running != 0 || waiting != 1 {
		t.Errorf("%d run, %d wait", running, waiting)
	}
	check(35, 20, 34)
	l.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: pod("a", true, true)})
	l.OnDelete(pod("never seen", true, true))
	check(40, 20, 39)
	l.OnUpdate(nil, pod("b", true, false))
	if running, waiting := l.count(); running != 1 || waiting != 0 || len(l.pods) != 1 {
		t.Errorf("%d run, %d wait, %d are known", running, waiting, len(l.pods))
	}
	if q := l.services()["silver-1"].quality(); math.Abs(q-20./39) > 1e-9 || (service{}).quality() != 0 {
		t.Errorf("quality %v", q)
	}
}

func TestTake(t *testing.T) {
	t.Parallel()
	services := map[string]service{"gold-1": {99, 100}, "silver-1": {60, 100}, "silver-2": {20, 80}}
	var o Outcome
	if err := o.take(services, Arm{Gold: 1, Silver: 2}, 200); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.Gold, []float64{.99}) || !slices.Equal(o.Silver, []float64{.25, .6}) || math.Abs(o.Service-.895) > 1e-9 || o.missed() != 1 {
		t.Errorf("%+v", o)
	}
	if err := (&Outcome{}).take(services, Arm{Gold: 1, Silver: 3}, 200); err == nil {
		t.Error("a workload has no pod, and there is no error")
	}
}

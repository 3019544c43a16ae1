package safe

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/decisions"
	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
	"github.com/layer-locality/layer-locality/scheduler/internal/problems"
	"github.com/layer-locality/layer-locality/scheduler/usage"
)

func args(t testing.TB, change func(*configv1.SafeArgs)) *config.SafeArgs {
	return frameworktest.Args(t, &configv1.SafeArgs{}, &config.SafeArgs{}, change)
}

func balance(a *configv1.SafeArgs) { score := config.ScoreBalance; a.Score = &score }

// node returns a node with 4000 millicores and 4000 bytes, of which the given share is used
// of both, with a deviation.
func node(name string, mean, deviation float64) *v1.Node {
	annotations := map[string]string{}
	for _, of := range []string{"cpu", "memory"} {
		annotations["mean-free-"+of] = fmt.Sprint(4000 * (1 - mean))
		annotations["std-free-"+of] = fmt.Sprint(4000 * deviation)
	}
	return frameworktest.Node(name, "4", "4000", annotations)
}

// golden are the published figures: the use that a node has, the answers of the filter and
// of both scores.
var golden = []struct {
	mean, deviation   float64
	fits              bool
	overload, balance int64
}{
	{0, 0, true, 100, 100}, {.5, 0, true, 100, 75}, {.95, 0, false, 0, 52},
	{.5, .2, true, 78, 52}, {.7, .2, true, 23, 42}, {.8, .1, true, 27, 44},
	{.8, .3, false, 0, 32}, {.85, .1, false, 0, 41}, {.5, .5, false, 0, 39},
}

// TestGolden has the published figures, through filter and scores of the plugin. The scores
// are from 0 to 100, rounded down.
func TestGolden(t *testing.T) {
	var nodes []*v1.Node
	for i, c := range golden {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), c.mean, c.deviation))
	}
	pod := frameworktest.Pod("p", "", "")
	overload := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, nil), nodes)
	steady := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, balance), nodes)
	for i, status := range overload.Filter(t, pod) {
		if status.IsSuccess() != golden[i].fits {
			t.Errorf("%+v: %v", golden[i], status)
		}
	}
	first, second := overload.Scores(t, pod), steady.Scores(t, pod)
	for i, c := range golden {
		if first[i] != c.overload || second[i] != c.balance {
			t.Errorf("%+v: %d and %d", c, first[i], second[i])
		}
	}
}

// TestForecast has the published example with a forecast and a pod that requests CPU: 500m
// in all, of which an init container needs 100m alone.
func TestForecast(t *testing.T) {
	n := frameworktest.Node("n", "4", "1Gi", map[string]string{
		"mean-free-cpu": "1600", "std-free-cpu": "400", "forcasted-free-cpu": "1200", "mean-free-memory": "1073741824",
	})
	pod := frameworktest.Pod("p", "500m", "")
	pod.Spec.InitContainers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}}}}
	for name, want := range map[string]struct {
		change func(*configv1.SafeArgs)
		score  int64
	}{"overload": {nil, 63}, "balance": {balance, 46}} {
		f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, want.change), []*v1.Node{n})
		if status := f.Filter(t, pod)[0]; !status.IsSuccess() {
			t.Errorf("%s: %v", name, status)
		}
		if got := f.Scores(t, pod); got[0] != want.score {
			t.Errorf("%s: %d, want %d", name, got[0], want.score)
		}
	}
	// An init container that needs more than all others decides.
	pod.Spec.InitContainers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("3")
	f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, nil), []*v1.Node{n})
	if status := f.Filter(t, pod)[0]; status.IsSuccess() {
		t.Error("3 cores fit where 2.5 are used of 4")
	}
}

// TestReasons: all nodes are rejected with the same words, which name risk and resource, and
// no preemption is tried.
func TestReasons(t *testing.T) {
	cpu, memory, both := node("cpu", .95, 0), node("memory", .96, 0), node("both", .99, .2)
	cpu.Annotations["mean-free-memory"] = "4000"
	memory.Annotations["mean-free-cpu"] = "4000"
	f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, nil), []*v1.Node{cpu, memory, both})
	const ofCPU, ofMemory = "node(s) had a risk above 0.3 of using more than 0.9 of their CPU", "node(s) had a risk above 0.3 of using more than 0.9 of their memory"
	for i, want := range [][]string{{ofCPU}, {ofMemory}, {ofCPU, ofMemory}} {
		status := f.Filter(t, frameworktest.Pod("p", "", ""))[i]
		if !slices.Equal(status.Reasons(), want) || status.Code() != fwk.UnschedulableAndUnresolvable {
			t.Errorf("%s: %v %v, want %v", f.Infos[i].Node().Name, status.Code(), status.Reasons(), want)
		}
	}
}

// TestAncestor has decisions by annotations as those who come from the kube-safe-scheduler have them, on
// nodes of 4000m and 400 MiB, for a pod of 100m and 1 MiB. The scores are its formulas', of 100 points.
func TestAncestor(t *testing.T) {
	idle := map[string]string{"mean-free-memory": "400000000.0", "std-free-memory": "41943.04", "forcasted-free-memory": "N/A", "mean-free-cpu": "3900.0", "std-free-cpu": "40.0"}
	for name, c := range map[string]struct {
		change            map[string]string // of idle; "-": without
		fits              bool
		overload, balance int64
	}{
		"idle":                     {nil, true, 100, 92},
		"no free memory":           {map[string]string{"mean-free-memory": "4194304.0"}, false, 0, 49},
		"no free CPU":              {map[string]string{"mean-free-cpu": "0"}, false, 0, 45},
		"less than no memory":      {map[string]string{"mean-free-memory": "-10"}, false, 0, 49},
		"less than no CPU":         {map[string]string{"mean-free-cpu": "-150.0"}, false, 0, 45},
		"CPU alone":                {map[string]string{"mean-free-memory": "-"}, true, 100, 92},
		"CPU alone, none free":     {map[string]string{"mean-free-memory": "None", "mean-free-cpu": "100"}, false, 0, 45},
		"memory alone":             {map[string]string{"mean-free-cpu": "nan"}, true, 100, 97},
		"memory alone, none free":  {map[string]string{"mean-free-cpu": "-", "mean-free-memory": "0"}, false, 0, 49},
		"neither":                  {map[string]string{"mean-free-cpu": "-", "mean-free-memory": "N/A"}, true, 0, 0},
		"no deviation":             {map[string]string{"std-free-memory": "nan", "std-free-cpu": "None"}, true, 100, 97},
		"no deviation, full":       {map[string]string{"std-free-memory": "nan", "mean-free-memory": "0"}, false, 0, 50},
		"a forecast":               {map[string]string{"forcasted-free-cpu": "1900"}, true, 100, 87},
		"a forecast below nothing": {map[string]string{"forcasted-free-cpu": "-500.5"}, true, 100, 82},
	} {
		annotations := maps.Clone(idle)
		maps.Copy(annotations, c.change)
		maps.DeleteFunc(annotations, func(_, text string) bool { return text == "-" })
		n, pod := frameworktest.Node("n", "4", "419430400", annotations), frameworktest.Pod("p", "100m", "1Mi")
		overload := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, nil), []*v1.Node{n})
		steady := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, balance), []*v1.Node{n})
		status, first, second := overload.Filter(t, pod)[0], overload.Scores(t, pod)[0], steady.Scores(t, pod)[0]
		if status.IsSuccess() != c.fits || first != c.overload || second != c.balance {
			t.Errorf("%s: %v, overload %d, balance %d; want %+v", name, status, first, second, c)
		}
	}
}

// TestBadStatistics: such nodes pass, get no points, are counted, and one of each kind is in
// the log.
func TestBadStatistics(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	long := strings.Repeat("7", 1<<20)
	var nodes []*v1.Node
	for i, bad := range []string{"NaN", "1e400", "-Inf", long, "Inf", "0x10", ""} {
		n := node(fmt.Sprintf("bad%d", i), .99, 0)
		n.Annotations["mean-free-cpu"], n.Annotations["mean-free-memory"] = bad, bad
		nodes = append(nodes, n)
	}
	none := node("none", .5, 0)
	none.Annotations = nil
	nodes = append(nodes, none, frameworktest.Node("empty", "", "", node("", .5, 0).Annotations))
	f := frameworktest.New(t, logger, Name, NewFactory().New, args(t, nil), nodes)
	before := count(t)
	pod := frameworktest.Pod("p", "100m", "1")
	for range 3 {
		for i, score := range f.Scores(t, pod) {
			if score != 0 {
				t.Errorf("%s: score %d", nodes[i].Name, score)
			}
		}
	}
	for i, status := range f.Filter(t, pod) {
		if !status.IsSuccess() {
			t.Errorf("%s: %v", nodes[i].Name, status)
		}
	}
	after := count(t)
	for reason, least := range map[usage.Problem]float64{usage.Invalid: 3 * 2 * 7, usage.Missing: 3 * 2, usage.NoCapacity: 3 * 2} {
		if got := after[reason] - before[reason]; got < least {
			t.Errorf("%s: counted %v times, want %v at least", reason, got, least)
		}
	}
	var text string
	if underlying, ok := logger.GetSink().(ktesting.Underlier); ok {
		text = underlying.GetBuffer().String()
	}
	lines := 0
	for line := range strings.Lines(text) {
		if strings.Contains(line, "rated without statistics") {
			lines++
			if len(line) > 1000 {
				t.Errorf("a line of %d bytes", len(line))
			}
		}
	}
	// CPU and memory invalid, missing, and without capacity.
	if lines != 6 {
		t.Errorf("%d lines in the log:\n%.2000s", lines, text)
	}
}

// count returns how often nodes were rated without statistics so far, by reason.
func count(t *testing.T) map[usage.Problem]float64 {
	t.Helper()
	problems.New(Name)
	counts := map[usage.Problem]float64{}
	for _, reason := range usage.Problems {
		value, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "scheduler_nodes_without_statistics_total", map[string]string{"plugin": Name, "reason": string(reason)}, "reason")
		if err != nil {
			t.Fatal(err)
		}
		counts[reason] = value[string(reason)]
	}
	return counts
}

// TestPermutation: the order of nodes changes nothing, and all scores are in the range.
func TestPermutation(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	var nodes []*v1.Node
	for i := range 50 {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), random.Float64(), random.Float64()/3))
	}
	frameworktest.Permutation(t, Name, NewFactory().New, args(t, nil), 0, nodes)
}

// TestEvents: a rejected pod is tried again when a node changes so that it fits.
func TestEvents(t *testing.T) {
	pl := newPlugin(args(t, nil), problems.New(Name))
	events, err := pl.EventsToRegister(t.Context())
	if err != nil || len(events) != 2 {
		t.Fatal(events, err)
	}
	pod, other := frameworktest.Pod("p", "100m", "1"), frameworktest.Pod("q", "100m", "1")
	for _, c := range []struct {
		event         int
		before, after any
		want          fwk.QueueingHint
	}{
		{0, nil, node("n", .1, 0), fwk.Queue}, {0, node("n", .99, 0), node("n", .98, 0), fwk.QueueSkip}, {0, node("n", .99, 0), node("n", .3, 0), fwk.Queue},
		{0, node("n", .99, 0), frameworktest.Node("n", "4", "4000", nil), fwk.Queue},
		{1, pod, pod, fwk.Queue}, {1, other, other, fwk.QueueSkip},
	} {
		if got, err := events[c.event].QueueingHintFn(klog.Background(), pod, c.before, c.after); err != nil || got != c.want {
			t.Errorf("event %d: %v %v, want %v", c.event, got, err, c.want)
		}
	}
	for _, event := range events {
		if got, err := event.QueueingHintFn(klog.Background(), pod, "", ""); err == nil || got != fwk.Queue {
			t.Errorf("no object: %v %v", got, err)
		}
	}
}

// TestDebug reads how nodes are rated, for a pod and for requests.
func TestDebug(t *testing.T) {
	factory := NewFactory()
	ask := func(query string) (int, string) {
		w := httptest.NewRecorder()
		factory.DebugHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, DebugPath+query, nil))
		return w.Code, w.Body.String()
	}
	if code, _ := ask(""); code != 404 {
		t.Errorf("no profile: %d", code)
	}
	frameworktest.New(t, klog.Background(), Name, factory.New, args(t, nil), []*v1.Node{node("good", .1, .2), node("full", .99, 0), frameworktest.Node("none", "4", "1Gi", nil)},
		frameworktest.Pod("p", "2", "1"))
	for query, want := range map[string]int64{"?pod=default/p": 58, "?cpu=2&memory=1": 58, "": 82} {
		code, text := ask(query)
		var answer struct {
			Profile string
			Rating  []NodeRating
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || code != 200 || len(answer.Rating) != 3 || answer.Profile != "default-scheduler" {
			t.Fatalf("%s: %d %s %v", query, code, text, err)
		}
		// In the order of their names.
		full, good, none := answer.Rating[0], answer.Rating[1], answer.Rating[2]
		if !full.Rejected || full.Score != 0 || full.Resources[v1.ResourceCPU].Risk != 1 {
			t.Errorf("%s: %+v", query, full)
		}
		if good.Rejected || good.Score != want {
			t.Errorf("%s: %+v, want the score %d", query, good, want)
		}
		if none.Rejected || none.Score != 0 || none.Resources[v1.ResourceMemory].Without != usage.Missing || none.Resources[v1.ResourceMemory].Of != "mean-free-memory" {
			t.Errorf("%s: %+v", query, none)
		}
	}
	for query, want := range map[string]int{"?pod=p": 400, "?pod=default/other": 404, "?cpu=much": 400, "?cpu=-1": 400, "?profile=other": 404} {
		if code, text := ask(query); code != want {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
	w := httptest.NewRecorder()
	if factory.DebugHandler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, DebugPath, nil)); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

// TestMemory: what is known of a node is read again when the node changes.
func TestMemory(t *testing.T) {
	pl := newPlugin(args(t, balance), problems.New(Name))
	for _, c := range []struct {
		node *v1.Node
		want int64
	}{{node("n", 0, 0), 100}, {node("n", .25, 0), 87}, {frameworktest.Node("n", "2", "2000", node("n", .5, 0).Annotations), 100}} {
		if got, status := pl.Score(t.Context(), framework.NewCycleState(), frameworktest.Pod("p", "", ""), infoOf(c.node)); !status.IsSuccess() || got != c.want {
			t.Errorf("%v: %d %v, want %d", c.node.Annotations, got, status, c.want)
		}
	}
}

// TestUntil: statistics that nobody states anew do not count after their time.
func TestUntil(t *testing.T) {
	full := func(name string, until time.Time) *v1.Node {
		n := node(name, .99, 0)
		n.Annotations[usage.Until] = until.Format(time.RFC3339)
		return n
	}
	f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, nil), []*v1.Node{full("current", time.Now().Add(time.Hour)), full("old", time.Now().Add(-time.Minute))})
	before := count(t)[usage.Unavailable]
	got := f.Filter(t, frameworktest.Pod("p", "", ""))
	if got[0].IsSuccess() || !got[1].IsSuccess() || count(t)[usage.Unavailable] != before+2 {
		t.Errorf("current: %v, old: %v, counted %v times", got[0], got[1], count(t)[usage.Unavailable]-before)
	}
}

// TestLog has the ratings of at most 100 nodes in the log, if that is asked for; the best nodes at one level, and each node at another.
func TestLog(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	yes := true
	var nodes []*v1.Node
	for i := range 150 {
		nodes = append(nodes, node(fmt.Sprintf("node-%d-", i), .5, .1))
	}
	f := frameworktest.New(t, logger, Name, NewFactory().New, args(t, func(a *configv1.SafeArgs) { a.LogRatings = &yes }), nodes)
	f.Scores(t, frameworktest.Pod("p", "", ""))
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if n := strings.Count(text, "node-"); !strings.Contains(text, "Rated nodes") || n != maxLogged {
		t.Errorf("%d nodes in the log: %.500s", n, text)
	}
	for level, want := range map[int]int{3: 0, 4: 0, 5: 0, 6: 2} { // each node that is filtered
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(level)))
		f := frameworktest.New(t, logger, Name, NewFactory().New, args(t, nil), []*v1.Node{node("n1", .5, 0), node("n2", .99, 0)})
		f.Filter(t, frameworktest.Pod("p", "", ""))
		scores := f.Scores(t, frameworktest.Pod("p", "", ""))
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if n := strings.Count(text, `Rated a node plugin="Safe" pod="default/p" rating={"node":"n`); n != want || want > 0 && !strings.Contains(text, `"rejected":true`) {
			t.Errorf("level %d: %d nodes in the log, want %d: %.1000s", level, n, want, text)
		}
		best := fmt.Sprintf(`Scored nodes plugin="Safe" pod="default/p" nodes=2 best=[{"node":"n1","score":%d},{"node":"n2","score":%d}]`, scores[0], scores[1])
		if strings.Contains(text, best) != (level >= decisions.Pods) {
			t.Errorf("level %d: want %s: %.1000s", level, best, text)
		}
	}
}

// TestFactory: wrong arguments are refused by name.
func TestFactory(t *testing.T) {
	wrong := args(t, nil)
	wrong.RiskPercent = 101
	if _, err := NewFactory().New(t.Context(), wrong, nil); err == nil || !strings.Contains(err.Error(), "riskPercent: Invalid value: 101") {
		t.Errorf("%v", err)
	}
	if _, err := NewFactory().New(t.Context(), &config.PackingArgs{}, nil); err == nil || !strings.Contains(err.Error(), "want SafeArgs") {
		t.Errorf("%v", err)
	}
}

// infoOf returns a node without pods.
func infoOf(node *v1.Node) fwk.NodeInfo {
	info := framework.NewNodeInfo()
	info.SetNode(node)
	return info
}

// FuzzAnnotations: whatever the annotations are, a node is rated.
func FuzzAnnotations(f *testing.F) {
	f.Add("1600", "400", "1200", int64(500))
	f.Add("NaN", "1e400", "-3", int64(0))
	f.Add("1e300", "1e-300", "1e308", int64(1)<<62)
	pl := newPlugin(args(f, nil), problems.New(Name))
	f.Fuzz(func(t *testing.T, mean, deviation, forecast string, request int64) {
		n := frameworktest.Node("n", "4", "1Gi", map[string]string{"mean-free-cpu": mean, "std-free-cpu": deviation, "forcasted-free-cpu": forecast, "mean-free-memory": mean})
		for _, rating := range pl.ratings(&cycle{demand: demand{float64(max(request, 0)), 1}}, []fwk.NodeInfo{infoOf(n)}) {
			for of, r := range rating.Resources {
				if !(r.Risk >= 0 && r.Risk <= 1 && r.Score >= 0 && r.Score <= 1) || rating.Score < 0 || rating.Score > 100 {
					t.Errorf("%s: %+v", of, rating)
				}
			}
		}
	})
}

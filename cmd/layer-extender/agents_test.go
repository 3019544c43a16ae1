package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/expectedpods"
	"github.com/layer-locality/layer-locality/extender/host"
)

// without are the agents that need no ImageManifests: this client has no such resource.
var without = []string{"safe-overload", "safe-balance", "packing", "congestion", "template"}

// settings are those of serve. The zero value has none.
type settings struct {
	plugins []agent.PluginConfig
	clock   clock.PassiveClock // nil means the real one
	logger  klog.Logger
}

// serve runs agents on a cluster in memory, and returns the URL of their server.
func serve(t testing.TB, with settings, objects ...runtime.Object) string {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), with.logger))
	kinds, debug := agents()
	kinds, err := host.Choose(kinds, without)
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(ctx, host.Config{Client: fake.NewClientset(objects...), Kinds: kinds, PluginConfig: with.plugins, MaxScore: 10, Debug: debug, Clock: with.clock})
	if err != nil {
		t.Fatal(err)
	}
	h.Start(ctx)
	server := httptest.NewServer(h.Handler(nil))
	t.Cleanup(func() {
		server.Close()
		cancel()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the agents have synced", h.HasSynced)
	return server.URL
}

// eventually waits until something is true.
func eventually(t testing.TB, what string, check func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

// ask sends a request for names of nodes.
func ask(t testing.TB, url, verb string, pod *v1.Pod, answer any, names ...string) {
	t.Helper()
	body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names})
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(url+"/scheduler/"+verb, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s %v", verb, response.Status, text, err)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		t.Fatalf("%s: %s: %v", verb, text, err)
	}
}

// scores asks for priorities, and returns them in the order of the names.
func scores(t testing.TB, url, agent string, pod *v1.Pod, names ...string) (scores []int64) {
	t.Helper()
	var answer extenderv1.HostPriorityList
	ask(t, url, "priorities/"+agent, pod, &answer, names...)
	for i, each := range answer {
		if each.Host != names[i] {
			t.Fatalf("%s: %v for %v", agent, answer, names)
		}
		scores = append(scores, each.Score)
	}
	return scores
}

// nodeWith returns a node with 4 CPUs.
func nodeWith(name, memory string, annotations map[string]string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: annotations},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse(memory), v1.ResourcePods: resource.MustParse("110")}},
	}
}

func podWith(name, node, cpu, memory string) *v1.Pod {
	requests := v1.ResourceList{}
	if cpu != "" {
		requests[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		requests[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: requests}}}},
	}
}

// TestSafeGolden has the published figures through both verbs.
func TestSafeGolden(t *testing.T) {
	golden := []struct {
		mean, deviation   float64
		fits              bool
		overload, balance int64
	}{
		{0, 0, true, 10, 10}, {.5, 0, true, 10, 8}, {.95, 0, false, 0, 5},
		{.5, .2, true, 7, 5}, {.7, .2, true, 2, 4}, {.8, .1, true, 2, 4},
		{.8, .3, false, 0, 3}, {.85, .1, false, 0, 4}, {.5, .5, false, 0, 4},
	}
	var objects []runtime.Object
	var names []string
	for i, c := range golden {
		annotations := map[string]string{}
		for _, of := range []string{"cpu", "memory"} {
			annotations["mean-free-"+of], annotations["std-free-"+of] = fmt.Sprint(4000*(1-c.mean)), fmt.Sprint(4000*c.deviation)
		}
		names = append(names, fmt.Sprintf("n%d", i))
		objects = append(objects, nodeWith(names[i], "4000", annotations))
	}
	example := map[string]string{"mean-free-cpu": "1600", "std-free-cpu": "400", "mean-free-memory": "1073741824"}
	objects = append(objects, nodeWith("no-forecast", "1Gi", maps.Clone(example)))
	example["forcasted-free-cpu"] = "1200"
	objects = append(objects, nodeWith("forecast", "1Gi", example))
	url, pod := serve(t, settings{}, objects...), podWith("p", "", "", "")
	var filtered extenderv1.ExtenderFilterResult
	ask(t, url, "predicates/safe-overload", pod, &filtered, names...)
	overload, balance := scores(t, url, "safe-overload", pod, names...), scores(t, url, "safe-balance", pod, names...)
	for i, c := range golden {
		reason := filtered.FailedAndUnresolvableNodes[names[i]]
		if slices.Contains(*filtered.NodeNames, names[i]) != c.fits || (reason == "") != c.fits || overload[i] != c.overload || balance[i] != c.balance {
			t.Errorf("%+v: %q, overload %d, balance %d", c, reason, overload[i], balance[i])
		}
	}
	if text := filtered.FailedAndUnresolvableNodes["n2"]; !strings.Contains(text, "risk above 0.3 of using more than 0.9 of their CPU") || text != filtered.FailedAndUnresolvableNodes["n8"] {
		t.Errorf("%q and %q", text, filtered.FailedAndUnresolvableNodes["n8"])
	}
	for agent, want := range map[string]int64{"safe-overload": 6, "safe-balance": 5} {
		if got := scores(t, url, agent, podWith("q", "", "500m", ""), "forecast"); got[0] != want {
			t.Errorf("%s with a forecast: %d", agent, got[0])
		}
	}
	// Without the forecast, the larger pod would have a risk of .25; with it, .35.
	for cpu, want := range map[string][]string{"500m": {"forecast", "no-forecast"}, "900m": {"no-forecast"}} {
		var filtered extenderv1.ExtenderFilterResult
		ask(t, url, "predicates/safe-overload", podWith("r", "", cpu, ""), &filtered, "forecast", "no-forecast")
		if !slices.Equal(*filtered.NodeNames, want) {
			t.Errorf("with a forecast, a pod of %s: %+v, want %v", cpu, filtered, want)
		}
	}
	// Only one of both filters.
	response, err := http.Post(url+"/scheduler/predicates/safe-balance", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if response.Body.Close(); response.StatusCode != http.StatusNotFound {
		t.Errorf("safe-balance filters: %s", response.Status)
	}
}

// TestPackingGolden has the published scores of BinPack and, from the published values, those
// of the other objectives, as arguments choose them; under both names. The pods that are asked
// about are not placed, so that each finds the same nodes.
func TestPackingGolden(t *testing.T) {
	var objects []runtime.Object
	names := []string{"n1", "n2", "n3"}
	for i, used := range [][2]string{{"1", "2000Mi"}, {"2", "6000Mi"}, {"3", "1000Mi"}} {
		objects = append(objects, nodeWith(names[i], "16000Mi", nil), podWith("on-"+names[i], names[i], used[0], used[1]))
	}
	for objective, want := range map[string][][]int64{
		"":            {{10, 3, 1}, {10, 3, 1}, {1, 10, 0}, {1, 10, 10}}, // BinPack
		"LoadBalance": {{10, 5, 1}, {10, 5, 1}, {10, 1, 0}, {10, 5, 1}},
		"Consolidate": {{1, 5, 10}, {1, 5, 10}, {1, 10, 0}, {1, 5, 10}},
	} {
		t.Run(objective, func(t *testing.T) {
			var configs []agent.PluginConfig
			if objective != "" {
				file := filepath.Join(t.TempDir(), "plugins.yaml")
				must(t, os.WriteFile(file, []byte("pluginConfig: [{name: Packing, args: {objective: "+objective+"}}]"), 0o600))
				var err error
				configs, err = (&options{pluginConfig: file}).plugins()
				must(t, err)
			}
			clock := clocktesting.NewFakeClock(time.Now())
			url := serve(t, settings{plugins: configs, clock: clock}, objects...)
			for i, size := range [][2]string{{"500m", "1000Mi"}, {"500m", "1000Mi"}, {"2", "4000Mi"}, {"250m", "8000Mi"}} {
				pod := podWith(fmt.Sprintf("p%d", i), "", size[0], size[1])
				// Asked again, by another name of the agent: neither counts the pod itself.
				for _, agent := range []string{"packing", "pigeon-holing"} {
					if got := scores(t, url, agent, pod, names...); !slices.Equal(got, want[i]) {
						t.Errorf("%s, pod %d: %v, want %v", agent, i, got, want[i])
					}
				}
				clock.Step(expectedpods.Timeout) // nobody binds it: the next pod finds the nodes as they were
			}
		})
	}
}

// TestOthersGolden has the published scores of congestion, and those of the template.
func TestOthersGolden(t *testing.T) {
	factors := []string{"25", "30", "130", "0", "-3", "NaN", "1e400", strings.Repeat("8", 1<<20)}
	var objects []runtime.Object
	names := []string{"none"}
	objects = append(objects, nodeWith("none", "1Gi", nil))
	for i, factor := range factors {
		names = append(names, fmt.Sprintf("n%d", i))
		objects = append(objects, nodeWith(names[i+1], "1Gi", map[string]string{"congestion-factor": factor}))
	}
	url, pod := serve(t, settings{}, objects...), podWith("p", "", "1", "")
	if got, want := scores(t, url, "congestion", pod, names...), []int64{10, 8, 7, 0, 10, 10, 10, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("congestion: %v, want %v", got, want)
	}
	for _, agent := range []string{"template", "foo"} {
		if got := scores(t, url, agent, pod, "none", "n1", "unknown"); !slices.Equal(got, []int64{1, 1, 0}) {
			t.Errorf("%s: %v", agent, got)
		}
		var filtered extenderv1.ExtenderFilterResult
		if ask(t, url, "predicates/"+agent, pod, &filtered, "none", "n1"); !slices.Equal(*filtered.NodeNames, []string{"none", "n1"}) {
			t.Errorf("%s: %+v", agent, filtered)
		}
	}
}

// TestVariables has the variables of the ancestor: below a file, above defaults.
func TestVariables(t *testing.T) {
	type configs = []agent.PluginConfig
	all, _ := agents()
	only, err := host.Choose(all, []string{"layers"})
	if err != nil {
		t.Fatal(err)
	}
	args := func(plugin string, args map[string]any) configs { return configs{{Name: plugin, Args: args}} }
	for name, c := range map[string]struct {
		file      configs
		kinds     []agent.Kind
		variables map[string]string
		want      configs
		warns     string
	}{
		"none":           {nil, all, nil, nil, ""},
		"empty":          {nil, all, map[string]string{"SAFEUTILIZATION": ""}, nil, ""},
		"safe":           {nil, all, map[string]string{"SAFEUTILIZATION": "85", "SAFEPERCENTILE": " 25 ", "SAFEFORECASTWEIGHT": "0", "SAFEPRINTTABLE": "true"}, args("Safe", map[string]any{"utilizationPercent": int64(85), "riskPercent": int64(25), "forecastPercent": int64(0), "logRatings": true}), ""},
		"packing":        {nil, all, map[string]string{"POLICY_OBJECTIVE": "LOAD_BALANCE", "NUM_RESOURCES": "3"}, args("Packing", map[string]any{"objective": "LoadBalance", "resources": []any{"cpu", "memory", "pods"}}), ""},
		"bin packing":    {nil, all, map[string]string{"POLICY_OBJECTIVE": "A_BINPACK"}, args("Packing", map[string]any{"objective": "BinPack"}), ""},
		"consolidation":  {nil, all, map[string]string{"POLICY_OBJECTIVE": "consolidate"}, args("Packing", map[string]any{"objective": "Consolidate"}), ""},
		"all resources":  {nil, all, map[string]string{"NUM_RESOURCES": "5"}, args("Packing", map[string]any{"resources": []any{"cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage"}}), ""},
		"congestion":     {nil, all, map[string]string{"CONGESTION_FACTOR_MAX": "10"}, args("Congestion", map[string]any{"maxFactor": int64(10)}), ""},
		"file":           {args("Safe", map[string]any{"riskPercent": 10.}), all, map[string]string{"SAFEPERCENTILE": "25", "SAFEUTILIZATION": "85"}, args("Safe", map[string]any{"riskPercent": 10., "utilizationPercent": int64(85)}), ""},
		"no agent":       {nil, only, map[string]string{"SAFEUTILIZATION": "85"}, nil, "an agent that does not run"},
		"above":          {nil, all, map[string]string{"SAFEUTILIZATION": "101"}, nil, "SAFEUTILIZATION=\"101\" is left out: want a whole number, 0 to 100"},
		"below":          {nil, all, map[string]string{"SAFEPERCENTILE": "-1"}, nil, "riskPercent of Safe"},
		"no number":      {nil, all, map[string]string{"SAFEFORECASTWEIGHT": "NaN"}, nil, "want a whole number"},
		"neither":        {nil, all, map[string]string{"SAFEPRINTTABLE": "perhaps"}, nil, "want true or false"},
		"objective":      {nil, all, map[string]string{"POLICY_OBJECTIVE": "BEST"}, nil, "want A_BINPACK, LOAD_BALANCE or CONSOLIDATE"},
		"no resource":    {nil, all, map[string]string{"NUM_RESOURCES": "0"}, nil, "1 to 5"},
		"many resources": {nil, all, map[string]string{"NUM_RESOURCES": "6"}, nil, "1 to 5"},
		"no congestion":  {nil, all, map[string]string{"CONGESTION_FACTOR_MAX": "0"}, nil, "1 to 1000000000"},
	} {
		var warnings []string
		got := withVariables(c.file, c.kinds, func(name string) (string, bool) { text, ok := c.variables[name]; return text, ok }, func(text string) { warnings = append(warnings, text) })
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if text := strings.Join(warnings, "\n"); (text == "") != (c.warns == "") || !strings.Contains(text, c.warns) {
			t.Errorf("%s: %q, want %q", name, text, c.warns)
		}
		// What is set is what the plugins accept.
		if len(c.kinds) == len(all) {
			serve(t, settings{plugins: got})
		}
	}
}

// TestArgumentsAreRefused: an agent with wrong arguments answers by the name of its plugin and of the
// argument, and is in the log; the others run, whatever plugins there are arguments for. Without others,
// nothing runs.
func TestArgumentsAreRefused(t *testing.T) {
	for plugin, c := range map[string]struct {
		args map[string]any
		want string
		path []string // of its agents, by all names
	}{
		"Safe":       {map[string]any{"riskPercent": 101}, "riskPercent", []string{"predicates/safe-overload", "priorities/safe-overload", "preempt/safe-overload", "priorities/safe-balance"}},
		"Packing":    {map[string]any{"resources": []any{"disk"}}, "resources[0]", []string{"priorities/packing", "priorities/pigeon-holing"}},
		"Congestion": {map[string]any{"maxFactor": 0}, "maxFactor", []string{"priorities/congestion"}},
	} {
		configs := []agent.PluginConfig{{Name: plugin, Args: c.args}, {Name: "Sfae"}, {Name: "LayerLocality"}}
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		url := serve(t, settings{plugins: configs, logger: logger}, nodeWith("n1", "1Gi", nil))
		for _, path := range c.path {
			response, err := http.Post(url+"/scheduler/"+path, "application/json", strings.NewReader("{}"))
			must(t, err)
			text, err := io.ReadAll(response.Body)
			must(t, err)
			response.Body.Close()
			if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), c.want) || !strings.Contains(string(text), plugin) {
				t.Errorf("%s: %s %s, want %s", path, response.Status, text, c.want)
			}
		}
		for _, name := range without {
			if !slices.Contains(c.path, "priorities/"+name) {
				scores(t, url, name, podWith("p", "", "", ""), "n1")
			}
		}
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		for _, want := range []string{"An agent does not run", c.want, `no agent of --agents has their plugin plugin="Sfae"`, `plugin="LayerLocality"`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the log has no %s:\n%.3000s", plugin, want, text)
			}
		}
		kinds, _ := agents()
		kinds = slices.DeleteFunc(kinds, func(k agent.Kind) bool { return k.Plugin != plugin })
		if _, err := host.New(t.Context(), host.Config{Client: fake.NewClientset(), Kinds: kinds, MaxScore: 10, PluginConfig: configs[:1]}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), plugin) {
			t.Errorf("%s alone: %v, want %s", plugin, err, c.want)
		}
	}
}

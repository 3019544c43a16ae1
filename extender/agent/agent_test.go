package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/extender/agent"
	"github.com/layer-locality/layer-locality/extender/expectedpods"
	"github.com/layer-locality/layer-locality/extender/internal/fixture"
	"github.com/layer-locality/layer-locality/extender/metrics"
	"github.com/layer-locality/layer-locality/scheduler/layerlocality"
)

// layers is the kind of an agent with LayerLocality.
func layers() agent.Kind {
	return agent.Kind{Name: "layers", Plugin: layerlocality.Name, New: layerlocality.NewFactory(layerlocality.WithoutHolding()).New, Expects: true, ScoresOnly: true}
}

func score(t *testing.T, a *agent.Agent, pod *v1.Pod, names ...string) []int64 {
	t.Helper()
	scores, err := a.Score(t.Context(), pod, names)
	if err != nil {
		t.Fatal(err)
	}
	return scores.Of
}

// TestLayers asks the real plugin: a node that has the image scores, the others do not.
func TestLayers(t *testing.T) {
	nodes, names := fixture.Nodes(3)
	nodes[1].(*v1.Node).Status.Images = []v1.ContainerImage{{Names: []string{"docker.io/library/app:v1"}, SizeBytes: 900_000_000}}
	c := fixture.NewCluster(t, nodes...)
	a := c.Agent(t, layers(), nil)
	c.Follow(t, a)
	got := score(t, a, fixture.Pod("p", "app:v1"), names...)
	if got[1] < 80 || got[0] != 0 || got[2] != 0 {
		t.Errorf("%v: the second node has the image", got)
	}
	if !a.Scores() || a.Filters() {
		t.Errorf("it scores: %t, filters: %t", a.Scores(), a.Filters())
	}
	if got := score(t, a, fixture.Pod("q", "app:v1"), "n2", "no-such"); got[0] < 80 || got[1] != 0 {
		t.Errorf("%v", got)
	}
}

// TestExpectedPods has pods with an unknown image come faster than bindings show.
func TestExpectedPods(t *testing.T) {
	nodes, names := fixture.Nodes(4)
	var pods []*v1.Pod
	for i := range 4 {
		pod := fixture.Pod(fmt.Sprint("p", i), "new:v1")
		pods, nodes = append(pods, pod), append(nodes, pod)
	}
	busy := fixture.Pod("busy", "other")
	busy.Spec.NodeName = "n1"
	busy.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	c := fixture.NewCluster(t, append(nodes, busy)...)
	clock := clocktesting.NewFakeClock(time.Now())
	a := c.Agent(t, layers(), clock)
	c.Follow(t, a)

	// Nothing is known: all are equal, and it is expected where least is requested.
	if got := score(t, a, pods[0], names...); slices.Max(got) != 0 {
		t.Fatalf("nothing is known: %v", got)
	}
	got := score(t, a, pods[1], names...)
	if got[1] == 0 || got[0] != 0 || got[2] != 0 || got[3] != 0 {
		t.Fatalf("the first pod is expected on n2, the scores of the second are %v", got)
	}
	// The second request for a pod counts once, and its own answer does not count for it.
	again := score(t, a, pods[1], names...)
	if !slices.Equal(got, again) || a.Expected() != 2 {
		t.Errorf("%v, and again %v; %d are expected", got, again, a.Expected())
	}
	if first := score(t, a, pods[0], names...); first[1] == 0 || a.Expected() != 2 {
		t.Errorf("the first pod again: %v, %d are expected", first, a.Expected())
	}
	// Both go elsewhere: the bindings correct what was expected.
	c.Bind(t, pods[0], "n4")
	c.Bind(t, pods[1], "n4")
	fixture.Eventually(t, "the layers arrive where the pods are", func() bool {
		got := score(t, a, pods[2], names...)
		return got[3] > 0 && got[1] == 0
	})
	if a.Expected() != 1 {
		t.Errorf("%d are expected, the others are bound", a.Expected())
	}
	// Nobody creates what the third pod was to bring, and n4 is gone: after a while nothing
	// is expected.
	clock.Step(expectedpods.Timeout - time.Millisecond)
	score(t, a, fixture.Pod("unrelated", "unrelated"), "n1")
	if a.Expected() != 2 {
		t.Errorf("%d are expected before the time is over", a.Expected())
	}
	clock.Step(time.Millisecond)
	score(t, a, fixture.Pod("unrelated", "unrelated"), "n1")
	if a.Expected() != 1 {
		t.Errorf("%d are expected when the time is over, want the one that was asked for again", a.Expected())
	}
}

// TestExpectedLoad has pods that request something come before bindings show: each counts
// on its node for the next one.
func TestExpectedLoad(t *testing.T) {
	nodes, names := fixture.Nodes(3)
	c := fixture.NewCluster(t, nodes...)
	p := fixture.New()
	clock := clocktesting.NewFakeClock(time.Now())
	a := c.Agent(t, p.Kind("fixture"), clock)
	c.Follow(t, a)
	for i := range 6 {
		pod := fixture.Pod(fmt.Sprint("p", i), "app")
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}
		score(t, a, pod, names...)
	}
	per := map[string]int{}
	for _, node := range p.Reserved {
		per[node]++
	}
	if per["n1"] != 2 || per["n2"] != 2 || per["n3"] != 2 {
		t.Errorf("equal nodes are expected to get %v", per)
	}
	clock.Step(expectedpods.Timeout)
	score(t, a, fixture.Pod("last", "app"), names...)
	if len(p.Reserved) != 1 || p.Reserved["last"] != "n1" {
		t.Errorf("after the time is over: %v", p.Reserved)
	}
}

// TestExpectedLoadOfLayers asks the real plugin, which remembers how loaded a node is: a pod that
// is expected there counts from the next request on, and not any longer than it is expected.
func TestExpectedLoadOfLayers(t *testing.T) {
	nodes, names := fixture.Nodes(2)
	for _, node := range nodes {
		node.(*v1.Node).Status.Images = []v1.ContainerImage{{Names: []string{"docker.io/library/app:v1"}, SizeBytes: 900_000_000}}
	}
	requesting := func(name string) *v1.Pod {
		pod := fixture.Pod(name, "app:v1")
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		return pod
	}
	light := requesting("light")
	light.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("1m")
	c := fixture.NewCluster(t, append(nodes, light)...)
	clock := clocktesting.NewFakeClock(time.Now())
	a := c.Agent(t, layers(), clock)
	c.Follow(t, a)
	asks := fixture.Pod("asks", "app:v1")
	asks.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}
	asks.UID = "" // it is expected nowhere itself

	if got := score(t, a, asks, names...); got[0] != got[1] {
		t.Fatalf("of equal nodes: %v", got)
	}
	score(t, a, requesting("first"), names...)
	if got := score(t, a, asks, names...); got[0] >= got[1] {
		t.Errorf("a pod is expected on n1: %v", got)
	}
	// Meanwhile something else changes on n1.
	c.Bind(t, light, "n1")
	fixture.Eventually(t, "the other pod is there", func() bool { return c.Placed(light) == "n1" })
	if got := score(t, a, asks, names...); got[0] >= got[1] {
		t.Errorf("a pod is expected on n1, another one is there: %v", got)
	}
	clock.Step(expectedpods.Timeout)
	light.Spec.NodeName = "n1"
	same := fixture.NewCluster(t, append(nodes, light)...)
	other := same.Agent(t, layers(), nil)
	same.Follow(t, other)
	if got, want := score(t, a, asks, names...), score(t, other, asks, names...); !slices.Equal(got, want) {
		t.Errorf("nothing is expected any more: %v, want %v as for an agent that never expected anything", got, want)
	}
}

// TestTwoAgents has two agents expect the same pods on different nodes: for each the pods count
// where it expects them itself, also for pods that only one of them is asked about, and once
// where they are bound.
func TestTwoAgents(t *testing.T) {
	nodes, names := fixture.Nodes(3)
	c := fixture.NewCluster(t, nodes...)
	requesting := func(name string) *v1.Pod {
		pod := fixture.Pod(name, "app")
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}
		return pod
	}
	clock := clocktesting.NewFakeClock(time.Now())
	prefers := func(name, node string) *agent.Agent {
		p := fixture.New()
		p.OnScore = func(pod *v1.Pod, on string) int64 {
			if pod.Name == "p" && on == node {
				return 50
			}
			return 0 // then the node is chosen of which least is requested
		}
		return c.Agent(t, p.Kind(name), clock)
	}
	one, two := prefers("one", "n1"), prefers("two", "n2")
	c.Follow(t, one, two)
	best := func(a *agent.Agent, pod *v1.Pod) string {
		t.Helper()
		scores, err := a.Score(t.Context(), pod, names)
		if err != nil {
			t.Fatal(err)
		}
		return names[scores.Best]
	}
	p := requesting("p")
	if _, err := c.Client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is the same
		if a, b := best(one, p), best(two, p); a != "n1" || b != "n2" {
			t.Errorf("p is expected on %s and %s", a, b)
		}
		if a, b := best(one, requesting("q")), best(two, requesting("q")); a != "n2" || b != "n1" {
			t.Errorf("q is expected on %s and %s, want the first other node than p for each", a, b)
		}
	}
	for range 2 {
		if got := best(two, requesting("r")); got != "n3" {
			t.Errorf("r is expected on %s: p and q are on the other nodes", got)
		}
	}
	c.Bind(t, p, "n3")
	if got := best(one, requesting("s")); got != "n1" {
		t.Errorf("s is expected on %s: p is not on n1 after all", got)
	}
	clock.Step(expectedpods.Timeout)
	if a, b := best(one, requesting("last")), best(two, requesting("last")); a != "n1" || b != "n1" {
		t.Errorf("after the time is over the last one is expected on %s and %s", a, b)
	}
}

// counting counts the pods that it sees on nodes.
type counting struct {
	*fixture.Plugin
	pods int
}

func (c *counting) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	c.pods = 0
	for _, node := range nodes {
		c.pods += len(node.GetPods())
	}
	return c.Plugin.PreScore(ctx, state, pod, nodes)
}

// TestBoundMeanwhile has bindings show while a request is answered, after its snapshot was taken:
// each pod counts once all the time.
func TestBoundMeanwhile(t *testing.T) {
	const pods = 20 // the order in which they are looked at is not fixed
	nodes, names := fixture.Nodes(2)
	var all []*v1.Pod
	for i := range pods {
		all = append(all, fixture.Pod(fmt.Sprint("p", i), "app"))
		nodes = append(nodes, all[i])
	}
	c := fixture.NewCluster(t, nodes...)
	p := &counting{Plugin: fixture.New()}
	kind := p.Kind("fixture")
	kind.New = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return p, nil }
	clock := clocktesting.NewFakeClock(time.Now())
	a := c.Agent(t, kind, clock)
	c.Follow(t, a)
	score(t, a, fixture.Pod("leaves", "app"), names...)
	clock.Step(expectedpods.Timeout - 1)
	for _, pod := range all {
		score(t, a, pod, names...)
	}
	clock.Step(1)
	// The time of that pod is over: Unreserve is called between snapshot and answer.
	p.OnUnreserve = func(pod *v1.Pod) {
		if pod.Name != "leaves" {
			t.Errorf("the time of %s is not over", pod.Name)
		}
		for _, pod := range all {
			c.Bind(t, pod, "n2")
		}
	}
	for i := range 2 { // the second snapshot has them
		if score(t, a, fixture.Pod("next", "app"), names...); p.pods != pods {
			t.Errorf("request %d sees %d pods, want %d", i, p.pods, pods)
		}
		p.OnUnreserve = nil
	}
	if a.Expected() != 1 {
		t.Errorf("%d are expected, want the last one", a.Expected())
	}
}

// TestKinds has agents that expect no pods, and that only score.
func TestKinds(t *testing.T) {
	nodes, names := fixture.Nodes(2)
	c := fixture.NewCluster(t, nodes...)
	p := fixture.New()
	p.OnFilter = func(*v1.Pod, string) string { return "" }
	kind := p.Kind("fixture")
	kind.Expects, kind.ScoresOnly = false, true
	a := c.Agent(t, kind, nil)
	c.Follow(t, a)
	got, err := a.Score(t.Context(), fixture.Pod("p", "app"), names)
	if err != nil {
		t.Fatal(err)
	}
	if got.Best != -1 || got.Tied || a.Expected() != 0 || len(p.Reserved) != 0 || p.Cycles != 0 {
		t.Errorf("%+v, %d expected, %v, %d cycles", got, a.Expected(), p.Reserved, p.Cycles)
	}
	if a.Filters() || !a.Scores() {
		t.Error("it filters, or does not score")
	}
}

// TestBest has nodes that are as good as others, in any order.
func TestBest(t *testing.T) {
	nodes, names := fixture.Nodes(4)
	busy := fixture.Pod("busy", "other")
	busy.Spec.NodeName = "n2"
	busy.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	c := fixture.NewCluster(t, append(nodes, busy)...)
	p := fixture.New()
	a := c.Agent(t, p.Kind("fixture"), nil)
	c.Follow(t, a)
	for _, test := range []struct {
		points map[string]int64
		best   string
		tied   bool
	}{
		{nil, "n1", true},
		{map[string]int64{"n2": 1}, "n2", false},
		{map[string]int64{"n2": 1, "n4": 1}, "n4", true}, // n2 is busy
		{map[string]int64{"n3": 7, "n4": 7, "n1": 6}, "n3", true},
		{map[string]int64{"n1": 5, "n3": 5, "n4": 8}, "n4", false},
	} {
		p.OnScore = func(_ *v1.Pod, node string) int64 { return test.points[node] }
		for range 10 {
			rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			got, err := a.Score(t.Context(), fixture.Pod("p", "app"), append([]string{"no-such"}, names...))
			if err != nil {
				t.Fatal(err)
			}
			if best := names[got.Best-1]; best != test.best || got.Tied != test.tied || p.Reserved["p"] != test.best {
				t.Fatalf("%v: best is %s, tied %t, expected on %s; want %s, %t", test.points, best, got.Tied, p.Reserved["p"], test.best, test.tied)
			}
		}
	}
	if got, err := a.Score(t.Context(), fixture.Pod("p", "app"), []string{"no-such"}); err != nil || got.Best != -1 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestPanicWithoutRequest has the plugin panic when the time of an answer is over and nobody
// asks: the agent goes on, and it is counted.
func TestPanicWithoutRequest(t *testing.T) {
	nodes, names := fixture.Nodes(1)
	c := fixture.NewCluster(t, nodes...)
	p := fixture.New()
	p.OnUnreserve = func(*v1.Pod) { panic("on purpose") }
	clock := clocktesting.NewFakeClock(time.Now())
	a := c.Agent(t, p.Kind("panics"), clock)
	c.Follow(t, a)
	panics := func() float64 {
		value, err := testutil.GetCounterMetricValue(metrics.Panics.WithLabelValues("panics"))
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	before := panics()
	score(t, a, fixture.Pod("p", "app"), names...)
	clock.Step(expectedpods.Timeout)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	fixture.Eventually(t, "the panic is counted", func() bool { return panics() == before+1 })
	cancel()
	running.Wait()
	p.OnUnreserve = nil
	score(t, a, fixture.Pod("q", "app"), names...)
	if a.Expected() != 1 {
		t.Errorf("%d are expected afterwards", a.Expected())
	}
}

// TestGoneWhileScored has a caller go away while its pod is scored: the pod is not expected.
func TestGoneWhileScored(t *testing.T) {
	nodes, names := fixture.Nodes(2)
	c := fixture.NewCluster(t, nodes...)
	p := fixture.New()
	a := c.Agent(t, p.Kind("fixture"), nil)
	c.Follow(t, a)
	ctx, goAway := context.WithCancel(t.Context())
	p.OnScore = func(*v1.Pod, string) int64 { goAway(); return 1 }
	if scores, err := a.Score(ctx, fixture.Pod("p", "app"), names); !errors.Is(err, context.Canceled) {
		t.Errorf("%v %v", scores, err)
	}
	if a.Expected() != 0 || len(p.Reserved) != 0 || p.Cycles != 0 {
		t.Errorf("expected: %v, %d cycles did not end", p.Reserved, p.Cycles)
	}
}

// TestNotExpected has answers that nobody can use.
func TestNotExpected(t *testing.T) {
	nodes, names := fixture.Nodes(2)
	bound := fixture.Pod("bound", "app")
	bound.Spec.NodeName = "n2"
	c := fixture.NewCluster(t, append(nodes, bound)...)
	p := fixture.New()
	a := c.Agent(t, p.Kind("fixture"), clocktesting.NewFakeClock(time.Now()))
	c.Follow(t, a)
	anonymous := fixture.Pod("anonymous", "app")
	anonymous.UID = ""
	score(t, a, anonymous, names...)
	score(t, a, bound, names...)
	score(t, a, fixture.Pod("nowhere", "app"), "no-such")
	score(t, a, fixture.Pod("nowhere", "app"))
	if len(p.Reserved) != 0 || a.Expected() != 0 {
		t.Errorf("expected: %v", p.Reserved)
	}
	p.OnScore = func(*v1.Pod, string) int64 { return 101 }
	if _, err := a.Score(t.Context(), fixture.Pod("wrong", "app"), names); err == nil {
		t.Error("a score of 101 is no error")
	}
	p.OnScore = func(*v1.Pod, string) int64 { return 0 }
	if p.Cycles != 0 {
		t.Errorf("%d cycles of the plugin did not end", p.Cycles)
	}
	large := fixture.Pod("large", strings.Repeat("x", expectedpods.MaxPod))
	score(t, a, large, names...)
	if a.Expected() != 0 {
		t.Error("a pod is kept however large it is")
	}
	// However many pods somebody makes up, memory is bounded.
	for i := range expectedpods.Most + 10 {
		score(t, a, fixture.Pod(fmt.Sprint("made-up-", i), "app"), "n1")
	}
	if a.Expected() != expectedpods.Most || len(p.Reserved) != expectedpods.Most {
		t.Errorf("%d are expected, %d at most may be", a.Expected(), expectedpods.Most)
	}
}

// TestEvents changes nodes and pods, and looks at what the agent makes of it.
func TestEvents(t *testing.T) {
	c := fixture.NewCluster(t, fixture.Node("n1"))
	p := fixture.New()
	p.OnScore = func(*v1.Pod, string) int64 { return 50 }
	p.OnFilter = func(*v1.Pod, string) string { return "" }
	a := c.Agent(t, p.Kind("fixture"), nil)
	c.Follow(t, a)
	ctx, nodes, pods := t.Context(), c.Client.CoreV1().Nodes(), c.Client.CoreV1().Pods("default")
	known := func(name string) bool { return score(t, a, fixture.Pod("p", "app"), name)[0] == 50 }
	if _, err := nodes.Create(ctx, fixture.Node("n2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the new node is known", func() bool { return known("n2") })
	if err := nodes.Delete(ctx, "n2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the deleted node is not", func() bool { return !known("n2") })
	if reasons, err := a.Filter(ctx, fixture.Pod("p", "app"), []string{"n1", "n2"}); err != nil || reasons[0].Reason != "" || reasons[1].Reason == "" || !reasons[1].Unresolvable {
		t.Errorf("%+v %v", reasons, err)
	}

	// A pod's requests count on its node until it is gone; the same name again is another pod.
	place := func(uid string) {
		pod := fixture.Pod("placed", "app")
		pod.UID, pod.Spec.NodeName = types.UID(uid), "n1"
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		fixture.Eventually(t, "it is known as placed", func() bool { return c.Placed(pod) == "n1" })
		if another := fixture.Pod("placed", "app"); c.Placed(another) != "" {
			t.Error("another pod of the same name counts as this one")
		}
		if err := pods.Delete(ctx, "placed", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		fixture.Eventually(t, "it is gone", func() bool { return c.Placed(pod) == "" })
	}
	place("one")
	place("two")
}

// TestEndsBetweenLooks binds and removes a pod while nobody looks: it is expected no longer.
func TestEndsBetweenLooks(t *testing.T) {
	nodes, names := fixture.Nodes(2)
	c := fixture.NewCluster(t, nodes...)
	a := c.Agent(t, fixture.New().Kind("fixture"), clocktesting.NewFakeClock(time.Now()))
	c.Follow(t, a)
	pods := c.Client.CoreV1().Pods("default")
	pod := fixture.Pod("short", "app")
	score(t, a, pod, names...)
	if a.Expected() != 1 {
		t.Fatalf("%d pods are expected", a.Expected())
	}
	pod.Spec.NodeName = "n1"
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "it is expected no longer", func() bool { return a.Expected() == 0 })
}

// TestArguments has right and wrong arguments for the plugin.
func TestArguments(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"pluginConfig: [{name: LayerLocality, args: {loadPenalty: 3}}]":  "",
		"- name: LayerLocality\n  args: {minImageBytes: 1000}":           "",
		"pluginConfig: [{name: LayerLocality, args: {loadPenalty: -3}}]": "loadPenalty",
		"pluginConfig: [{name: LayerLocality, args: {noSuch: 1}}]":       "noSuch",
		"pluginConfig: [{name: LayerLocality, args: {loadPenalty: x}}]":  "loadPenalty",
		"- name: LayerLocality\n  arguments: {}":                         `"arguments"`,
		"pluginConfigs: []":                                              "pluginConfig",
		"x":                                                              "pluginConfig",
		"{":                                                              "pluginConfig",
		"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: []": "pluginConfig",
	} {
		configs, err := agent.PluginConfigs([]byte(text))
		if err == nil {
			c := fixture.NewCluster(t)
			var a *agent.Agent
			if a, err = agent.New(t.Context(), layers(), agent.Config{Cluster: c.Cluster, PluginConfig: configs}); err == nil {
				a.Close()
			}
		}
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

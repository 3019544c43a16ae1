package packing

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
)

func args(t testing.TB, objective string, resources ...string) *config.PackingArgs {
	return frameworktest.Args(t, &configv1.PackingArgs{}, &config.PackingArgs{}, func(a *configv1.PackingArgs) {
		a.Objective, a.Resources = &objective, resources
	})
}

// golden are three nodes of 4000 millicores and 16000 MiB, and what pods on them use.
func golden() (nodes []*v1.Node, pods []*v1.Pod) {
	for i, used := range [][2]string{{"1", "2000Mi"}, {"2", "6000Mi"}, {"3", "1000Mi"}} {
		name := fmt.Sprintf("n%d", i+1)
		nodes = append(nodes, frameworktest.Node(name, "4", "16000Mi", nil))
		pods = append(pods, frameworktest.On(frameworktest.Pod("on-"+name, used[0], used[1]), name))
	}
	return nodes, pods
}

// TestGolden has the published scores of BinPack, through the plugin, and the order of the
// published values of the others. The scores are from 0 to 100, rounded down.
func TestGolden(t *testing.T) {
	nodes, pods := golden()
	for objective, want := range map[string][][]int64{
		config.BinPack:     {{100, 29, 10}, {100, 29, 10}, {10, 100, 0}, {10, 95, 100}},
		config.LoadBalance: {{100, 49, 10}, {100, 49, 10}, {100, 10, 0}, {100, 52, 10}},
		config.Consolidate: {{10, 54, 100}, {10, 54, 100}, {10, 100, 0}, {10, 54, 100}},
	} {
		f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, objective), nodes, pods...)
		for i, size := range [][2]string{{"500m", "1000Mi"}, {"500m", "1000Mi"}, {"2", "4000Mi"}, {"250m", "8000Mi"}} {
			pod := frameworktest.Pod(fmt.Sprintf("p%d", i), size[0], size[1])
			if got := f.Scores(t, pod); !slices.Equal(got, want[i]) {
				t.Errorf("%s, pod %v: %v, want %v", objective, size, got, want[i])
			}
			if got := f.Scores(t, pod); !slices.Equal(got, want[i]) { // it counts once
				t.Errorf("%s, pod %v again: %v, want %v", objective, size, got, want[i])
			}
		}
	}
}

// TestPrime: the first resource is the one that LoadBalance and Consolidate rate, whatever follows.
func TestPrime(t *testing.T) {
	nodes, pods := golden()
	for objective, want := range map[string][]int64{config.LoadBalance: {79, 10, 100}, config.Consolidate: {57, 100, 10}} {
		f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, objective, "memory", "cpu"), nodes, pods...)
		if got := f.Scores(t, frameworktest.Pod("p", "500m", "1000Mi")); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", objective, got, want)
		}
	}
}

// TestDemand: requests of 0 count a little, and a pod without a UID is not counted.
func TestDemand(t *testing.T) {
	pod := frameworktest.Pod("p", "", "")
	pod.Spec.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = resource.MustParse("5Ki")
	pod.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("2")
	pl := &captured{}
	nodes, pods := golden()
	profile := frameworktest.New(t, klog.Background(), Name, pl.make, args(t, config.BinPack, "cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage"), nodes, pods...)
	if got, want := pl.demandOf(pod), [5]float64{10, 16 << 20, 1, 2, 5120}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	pod.UID = ""
	profile.Scores(t, pod)
	if pl.demand.Pods() != 0 {
		t.Error("a pod without a UID was counted")
	}
	for range 3 {
		profile.Scores(t, frameworktest.Pod("q", "1", "1Gi"))
	}
	if pl.demand.Pods() != 1 {
		t.Errorf("a pod was counted %d times", pl.demand.Pods())
	}
}

// captured makes the plugin, and keeps the last one.
type captured struct{ *Packing }

func (c *captured) make(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	plugin, err := NewFactory().New(ctx, args, handle)
	if err == nil {
		c.Packing = plugin.(*Packing)
	}
	return plugin, err
}

// TestNodes has nodes of other sizes, without capacity, and with a resource that others lack.
func TestNodes(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	gpu := frameworktest.Node("gpu", "8", "32Gi", nil)
	gpu.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4")
	nodes := []*v1.Node{gpu, frameworktest.Node("plain", "4", "16Gi", nil), frameworktest.Node("empty", "", "", nil)}
	f := frameworktest.New(t, logger, Name, NewFactory().New, args(t, config.LoadBalance, "nvidia.com/gpu", "cpu"), nodes)
	pod := frameworktest.Pod("p", "1", "1Gi")
	pod.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1")
	if got := f.Scores(t, pod); !slices.Equal(got, []int64{100, 0, 0}) {
		t.Errorf("a pod with a GPU: %v", got)
	}
	if got := f.Scores(t, frameworktest.Pod("q", "1", "1Gi")); !slices.Equal(got, []int64{100, 100, 0}) {
		t.Errorf("a pod without: %v", got)
	}
	if got := f.Scores(t, frameworktest.Pod("r", "100", "1Gi")); !slices.Equal(got, []int64{0, 0, 0}) {
		t.Errorf("a pod that fits nowhere: %v", got)
	}
	if text := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(text, "rated without statistics") != 1 || !strings.Contains(text, "empty") {
		t.Errorf("log: %s", text)
	}
}

// TestAllNodes: nodes that are not feasible count in the objective.
func TestAllNodes(t *testing.T) {
	nodes, pods := golden()
	f := frameworktest.New(t, klog.Background(), Name, NewFactory().New, args(t, config.BinPack), nodes, pods...)
	f.Infos = f.Infos[1:]
	f.Scores(t, frameworktest.Pod("p0", "500m", "1000Mi"))
	f.Scores(t, frameworktest.Pod("p1", "500m", "1000Mi"))
	f.Scores(t, frameworktest.Pod("p2", "2", "4000Mi"))
	// As of all three nodes, .136001 and .116788: alone they would be .026 and .062.
	if got := f.Scores(t, frameworktest.Pod("p3", "250m", "8000Mi")); !slices.Equal(got, []int64{10, 100}) {
		t.Errorf("%v", got)
	}
}

// TestPermutation: the order of nodes changes nothing, and all scores are in the range.
func TestPermutation(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	var nodes []*v1.Node
	var pods []*v1.Pod
	for i := range 40 {
		name := fmt.Sprintf("n%d", i)
		nodes = append(nodes, frameworktest.Node(name, fmt.Sprint(1+random.IntN(8)), fmt.Sprintf("%dGi", 1+random.IntN(32)), nil))
		for j := range random.IntN(4) {
			pods = append(pods, frameworktest.On(frameworktest.Pod(fmt.Sprintf("p%d-%d", i, j), fmt.Sprintf("%dm", random.IntN(900)), fmt.Sprintf("%dMi", random.IntN(900))), name))
		}
	}
	for _, objective := range []string{config.BinPack, config.LoadBalance, config.Consolidate} {
		frameworktest.Permutation(t, Name, NewFactory().New, args(t, objective), 1, nodes, pods...) // sums differ in their last digits
	}
}

// TestDebug reads the numbers of the objective.
func TestDebug(t *testing.T) {
	factory := NewFactory()
	nodes, pods := golden()
	f := frameworktest.New(t, klog.Background(), Name, factory.New, args(t, config.BinPack), nodes, append(pods, frameworktest.Pod("waits", "2", "4000Mi"))...)
	for i, size := range [][2]string{{"500m", "1000Mi"}, {"500m", "1000Mi"}, {"2", "4000Mi"}} {
		f.Scores(t, frameworktest.Pod(fmt.Sprintf("p%d", i), size[0], size[1]))
	}
	for _, query := range []string{"?pod=default/waits", "?cpu=2&memory=4000Mi"} {
		w := httptest.NewRecorder()
		factory.DebugHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, DebugPath+query, nil))
		var answer struct{ Rating Rating }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatalf("%s: %d %s %v", query, w.Code, w.Body, err)
		}
		r := answer.Rating
		near := func(got, want float64) bool { return math.Abs(got-want) < 2e-6 }
		if r.Objective != "BinPack" || r.PodsCounted != 3 || !near(r.PodsDiffer, .707107) || !near(r.Mean[v1.ResourceCPU], .5) || !near(r.Deviation[v1.ResourceCPU], .204124) || !near(r.Value, math.Abs(r.NodesDiffer-r.PodsDiffer)) {
			t.Errorf("%s: %+v", query, r)
		}
		if len(r.Nodes) != 3 || !near(*r.Nodes[0].Value, .575695) || !near(*r.Nodes[1].Value, .206120) || r.Nodes[2].Value != nil || r.Nodes[2].Score != 0 || r.Nodes[1].Use["cpu"] != .5 {
			t.Errorf("%s: %s", query, w.Body)
		}
	}
}

func TestFactory(t *testing.T) {
	if _, err := NewFactory().New(t.Context(), args(t, "Other"), nil); err == nil || !strings.Contains(err.Error(), `objective: Unsupported value: "Other"`) {
		t.Errorf("%v", err)
	}
	if _, err := NewFactory().New(t.Context(), &config.SafeArgs{}, nil); err == nil || !strings.Contains(err.Error(), "want PackingArgs") {
		t.Errorf("%v", err)
	}
	nodes, _ := golden()
	pl := &captured{}
	f := frameworktest.New(t, klog.Background(), Name, pl.make, args(t, config.BinPack), nodes)
	if _, status := pl.Score(t.Context(), framework.NewCycleState(), nil, f.Infos[0]); status.IsSuccess() || !strings.Contains(status.Message(), "preScore") || status.Code() != fwk.Error {
		t.Errorf("without PreScore: %v", status)
	}
}

package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/evaluation"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/scheduler/nodestatus"
)

// needsLayers skips a test in a build that does not see layers.
func needsLayers(t testing.TB) {
	t.Helper()
	if err := nodestatus.NeedLayers(); err != nil {
		t.Skip(err)
	}
}

// nodesOf makes nodes with 4 CPUs, 4 GiB and links of 6 MB/s.
func nodesOf(n int) []workload.Node {
	nodes := make([]workload.Node, n)
	for i := range nodes {
		nodes[i] = workload.Node{Name: fmt.Sprintf("n%03d", i), MilliCPU: 4000, Memory: 4 << 30, Pods: 110, Disk: 1e12, Link: 6 * mb}
	}
	return nodes
}

// imageOf makes an image with layers "NAME SIZE-IN-MB".
func imageOf(name string, layers ...any) dataset.Image {
	image := dataset.Image{Image: name}
	for k := 0; k < len(layers); k += 2 {
		image.Layers = append(image.Layers, dataset.Layer{Digest: layers[k].(string), Size: int64(layers[k+1].(int)) * mb})
	}
	return image
}

func podOf(image string, milliCPU int64, lifetime time.Duration) *workload.Pod {
	return &workload.Pod{Image: image, MilliCPU: milliCPU, Memory: 1 << 20, Lifetime: lifetime}
}

// begin prepares a run of a plan in which only links take time.
func begin(t testing.TB, policy string, plan *workload.Plan, change func(*Model)) *run {
	t.Helper()
	needsLayers(t)
	p, err := ParsePolicy(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Validate(); err != nil {
		t.Fatal(err)
	}
	model := linksOnly()
	if change != nil {
		change(&model)
	}
	r, err := prepare(t.Context(), plan, p, model, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// playAll plays a run to the end, and calls look after each step.
func (r *run) playAll(t testing.TB, look func()) evaluation.Metrics {
	t.Helper()
	for r.step() {
		if look != nil {
			look()
		}
	}
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.metrics()
}

func TestBuildWithoutLayers(t *testing.T) {
	_, err := Run(t.Context(), &workload.Plan{Nodes: nodesOf(1)}, Policies()[0], DefaultModel(), 1)
	if refused := err != nil && strings.Contains(err.Error(), "-tags imagelayers"); refused == nodestatus.Layers {
		t.Errorf("layers are seen: %t, and Run returns %v", nodestatus.Layers, err)
	}
}

// Pods of a Deployment belong to a ReplicaSet: the default topology spread applies,
// whatever the image is called.
func TestDeploymentsSpread(t *testing.T) {
	for _, image := range []string{"nginx", "quay.io/library/nginx:1.2", "nginx@sha256:" + strings.Repeat("0", 64)} {
		nodes := nodesOf(4)
		nodes[0].MilliCPU, nodes[0].Memory = 64000, 64<<30 // so that all other scores prefer it
		r := begin(t, "default", &workload.Plan{
			Nodes: nodes, Images: []dataset.Image{imageOf(image, "a", 1)},
			Events: []workload.Event{{Deploy: &workload.Deployment{Name: "d", Image: image, Replicas: 8, MilliCPU: 400, Memory: 400 << 20}}},
		}, nil)
		r.playAll(t, nil)
		for _, m := range r.order {
			if m.pods != 2 {
				t.Errorf("image %s: %d of 8 pods on %s of 4 nodes, want 2", image, m.pods, m.Name)
			}
		}
	}
}

func TestPodsThatFitNowhere(t *testing.T) {
	images := []dataset.Image{imageOf("a", "a", 6)}
	at := func(s float64, p *workload.Pod) workload.Event { return workload.Event{At: seconds(s), Pod: p} }
	t.Run("do not hold up others", func(t *testing.T) {
		r := begin(t, "default", &workload.Plan{Nodes: nodesOf(1), Images: images, Events: []workload.Event{
			at(1, podOf("a", 5000, 0)), at(2, podOf("a", 500, 0)),
		}}, nil)
		m := r.playAll(t, nil)
		if m.Pods != 2 || m.Unschedulable != 1 || m.Unstarted != 0 || len(r.startups) != 1 || math.Abs(r.startups[0]-1) > 1e-6 {
			t.Errorf("%d pods, %d unschedulable, others started after %v s; want 2, 1, [1]", m.Pods, m.Unschedulable, r.startups)
		}
	})
	t.Run("are tried in turn when a pod ends", func(t *testing.T) {
		r := begin(t, "default", &workload.Plan{Nodes: nodesOf(1), Images: images, Events: []workload.Event{
			at(0, podOf("a", 3000, 59*time.Second)), // pulls for 1 s, ends at 60
			at(1, podOf("a", 3000, 10*time.Second)), // 60 to 70
			at(2, podOf("a", 2000, 20*time.Second)), // 70 to 90: does not fit beside the other
			at(3, podOf("a", 1000, 5*time.Second)),  // at once
		}}, nil)
		m := r.playAll(t, nil)
		want := []float64{0, 1, 59, 68}
		if m.Unschedulable != 0 || !slices.EqualFunc(r.startups, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }) {
			t.Errorf("%d unschedulable, started after %v s, want %v", m.Unschedulable, r.startups, want)
		}
	})
	t.Run("get a node that joins", func(t *testing.T) {
		large := nodesOf(2)[1]
		large.MilliCPU = 8000
		r := begin(t, "default", &workload.Plan{Nodes: nodesOf(1), Images: images, Events: []workload.Event{
			at(1, podOf("a", 5000, 0)), {At: 11 * time.Second, Join: &large},
		}}, nil)
		m := r.playAll(t, nil)
		if m.Unschedulable != 0 || math.Abs(m.StartupMean-11) > 1e-6 || r.machines["n001"].pods != 1 {
			t.Errorf("%d unschedulable, start after %g s, want 11", m.Unschedulable, m.StartupMean)
		}
	})
	t.Run("are no more when they are deleted", func(t *testing.T) {
		deploy := func(replicas int) *workload.Deployment {
			return &workload.Deployment{Name: "d", Image: "a", Replicas: replicas, MilliCPU: 5000}
		}
		r := begin(t, "default", &workload.Plan{Nodes: nodesOf(1), Images: images, Events: []workload.Event{
			{At: time.Second, Deploy: deploy(2)}, {At: time.Minute, Deploy: deploy(0)},
		}}, nil)
		if m := r.playAll(t, nil); m.Pods != 2 || m.Unschedulable != 0 || r.q.now != time.Minute {
			t.Errorf("%d pods, %d unschedulable, the run ended at %s; want 2, 0, 1m0s", m.Pods, m.Unschedulable, r.q.now)
		}
	})
}

// A pod of an unknown image is held until there is a manifest, but not for long.
func TestWaitForManifest(t *testing.T) {
	for _, test := range []struct {
		policy string
		delay  time.Duration
		want   float64 // seconds in which the pod starts
	}{
		{"layerlocality:wait=5s", 2 * time.Second, 2},
		{"layerlocality:wait=5s", 20 * time.Second, 5},
		{"layerlocality:wait=5s", 0, 0},
		{"layerlocality-no-wait", 2 * time.Second, 0},
		{"layerlocality-no-resolver:wait=5s", 2 * time.Second, 0}, // there is no resolver to wait for
		{"lrscheduler:wait=5s", 2 * time.Second, 0},
		{"default", 2 * time.Second, 0},
	} {
		t.Run(fmt.Sprint(test.policy, test.delay), func(t *testing.T) {
			r := begin(t, test.policy, &workload.Plan{
				Nodes:  nodesOf(2),
				Images: []dataset.Image{imageOf("a", "a", 0), imageOf("b", "a", 0)},
				Events: []workload.Event{
					{At: time.Second, Pod: podOf("a", 100, 0)},
					{At: time.Minute, Pod: podOf("a", 100, 0)},     // known for long
					{At: 2 * time.Minute, Pod: podOf("b", 100, 0)}, // the same image, but that is not known
				},
			}, func(m *Model) { m.ManifestDelay = test.delay })
			r.playAll(t, nil)
			want := []float64{0, test.want, test.want} // metrics sort them
			if !slices.EqualFunc(r.startups, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }) {
				t.Errorf("started after %v s, want %v", r.startups, want)
			}
		})
	}
}

// Deployments roll one pod at a time, whatever happens to them.
func TestRolling(t *testing.T) {
	for seed := range uint64(6) {
		for _, policy := range []string{"default", "layerlocality", "greedy"} {
			random := rand.New(rand.NewPCG(seed, 3))
			plan := &workload.Plan{Nodes: nodesOf(6)}
			for k := range 20 {
				plan.Images = append(plan.Images, imageOf(fmt.Sprintf("i%d:1", k), "base", 20, fmt.Sprint(k), 1+random.IntN(60)))
			}
			replicas := []int{1, 2, 4, 5}
			at := time.Duration(0)
			for range 60 {
				k := random.IntN(len(replicas))
				plan.Events = append(plan.Events, workload.Event{At: at, Deploy: &workload.Deployment{
					Name: fmt.Sprintf("d%d", k), Image: plan.Images[random.IntN(20)].Image,
					Replicas: replicas[k], MilliCPU: 300, Memory: 100 << 20, Apart: k%2 == 1,
				}})
				at += upTo(random, 40*time.Second)
			}
			r := begin(t, policy, plan, func(m *Model) {
				if seed%2 == 1 { // with everything that takes time
					*m = DefaultModel()
				}
			})
			complete := map[*deployment]bool{}
			r.playAll(t, func() {
				placed := map[*machine]int64{}
				for _, d := range r.deployments {
					running, on := 0, map[*machine]bool{}
					for _, p := range d.pods {
						if p.running {
							running++
						}
						if p.machine != nil && d.Apart && on[p.machine] {
							t.Fatalf("seed %d, %s at %s: two pods of %s on %s", seed, policy, r.q.now, d.Name, p.machine.Name)
						}
						if p.machine != nil {
							on[p.machine] = true
							placed[p.machine] += p.milliCPU
						}
					}
					complete[d] = complete[d] || running >= d.Replicas
					if complete[d] && running < d.Replicas || len(d.pods) > d.Replicas+1 {
						t.Fatalf("seed %d, %s at %s: %d of %d pods of %s run, want %d or one more", seed, policy, r.q.now, running, len(d.pods), d.Name, d.Replicas)
					}
				}
				for _, m := range r.order {
					if m.requests != placed[m] || m.requests > m.MilliCPU {
						t.Fatalf("seed %d, %s at %s: %dm are requested on %s, its pods have %dm", seed, policy, r.q.now, m.requests, m.Name, placed[m])
					}
				}
			})
			for _, d := range r.deployments {
				for _, p := range d.pods {
					if p.name != d.Image || !p.running {
						t.Errorf("seed %d, %s: a pod of %s is left with %s", seed, policy, d.Name, p.name)
					}
				}
				if len(d.pods) != d.Replicas {
					t.Errorf("seed %d, %s: %d pods of %s are left", seed, policy, len(d.pods), d.Name)
				}
			}
		}
	}
}

func TestScaling(t *testing.T) {
	var events []workload.Event
	for k, n := range []int{1, 5, 2, 0, 3} {
		events = append(events, workload.Event{At: time.Duration(k) * time.Minute, Deploy: &workload.Deployment{Name: "d", Image: "a", Replicas: n, MilliCPU: 100}})
	}
	r := begin(t, "default", &workload.Plan{Nodes: nodesOf(3), Images: []dataset.Image{imageOf("a", "a", 6)}, Events: events}, nil)
	var seen []int
	r.playAll(t, func() {
		if n := len(r.deployments["d"].pods); len(seen) == 0 || seen[len(seen)-1] != n {
			seen = append(seen, n)
		}
	})
	if !slices.Equal(seen, []int{1, 5, 2, 0, 3}) || r.created != 8 {
		t.Errorf("%v pods one after another, %d created", seen, r.created)
	}
}

func TestMetrics(t *testing.T) {
	t.Run("by hand", func(t *testing.T) {
		// LeastAllocated puts the second pod on the other node, and the third on the
		// node with fewer requests.
		r := begin(t, "default", &workload.Plan{
			Nodes: nodesOf(2), Images: []dataset.Image{imageOf("a", "S", 6, "a", 6), imageOf("b", "S", 6, "b", 3)},
			Events: []workload.Event{
				{At: 0, Pod: podOf("a", 1600, 0)},
				{At: time.Minute, Pod: podOf("b", 800, 0)},
				{At: 2 * time.Minute, Pod: podOf("b", 400, 0)},
			},
		}, nil)
		m := r.playAll(t, nil)
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 1e-6 {
				t.Errorf("%s: %g, want %g", what, got, want)
			}
		}
		// Shares .4 0; .4 .2; .4 .3. Pods 1 0; 1 1; 1 2.
		near("CPUStd", m.CPUStd, (0.2+0.1+0.05)/3)
		near("MaxMeanPods", m.MaxMeanPods, (2+1+2/1.5)/3)
		// 12 MB: two flows at 3 MB/s. 9 MB: 6 in 1 s, then 3 at 6 MB/s. The third is there.
		near("StartupMean", m.StartupMean, (2+1.5+0)/3)
		near("StartupP50", m.StartupP50, 1.5)
		near("StartupP99", m.StartupP99, 2)
		near("PulledBytes", float64(m.PulledBytes), 21*mb)
		near("DiskBytes", float64(m.DiskBytes), 21*mb)
		near("RemovedBytes", float64(m.RemovedBytes), 0)
		near("DistinctBytes", float64(m.DistinctBytes), 15*mb) // S counts once
		if m.Pods != 3 || m.Unschedulable != 0 {
			t.Errorf("%d pods, %d unschedulable", m.Pods, m.Unschedulable)
		}
	})
	t.Run("quantiles", func(t *testing.T) {
		for _, test := range []struct {
			n        int
			p50, p99 float64
		}{{1, 1, 1}, {2, 1, 2}, {50, 25, 50}, {100, 50, 99}, {101, 51, 100}, {200, 100, 198}} {
			r := &run{}
			for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(test.n) {
				r.startups = append(r.startups, float64(i+1))
			}
			if m := r.metrics(); m.StartupP50 != test.p50 || m.StartupP99 != test.p99 {
				t.Errorf("1 to %d: P50 %g, P99 %g, want %g, %g", test.n, m.StartupP50, m.StartupP99, test.p50, test.p99)
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		if m := begin(t, "default", &workload.Plan{Nodes: nodesOf(1)}, nil).playAll(t, nil); m.Pods != 0 || m.CPUStd != 0 || m.StartupP99 != 0 {
			t.Errorf("%+v", m)
		}
	})
}

// Every policy gives the same result again, also when others run in parallel.
func TestDeterminism(t *testing.T) {
	needsLayers(t)
	arrivals := workload.Zipf(1)
	arrivals.Nodes, arrivals.Pods, arrivals.Rate, arrivals.ReplicaSets = 5, 150, 0.2, true
	plan, err := arrivals.Plan(rand.New(rand.NewPCG(1, 1)), dataset.Generate(rand.New(rand.NewPCG(2, 2)), 60))
	if err != nil {
		t.Fatal(err)
	}
	play := func(p Policy) string {
		m, err := Run(context.Background(), plan, p, DefaultModel(), 5)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		m.Seconds = 0
		return fmt.Sprintf("%+v", m)
	}
	policies := Policies()
	first := make([]string, len(policies))
	for k, p := range policies {
		first[k] = play(p)
	}
	var wait sync.WaitGroup
	for k, p := range policies {
		wait.Go(func() {
			if again := play(p); again != first[k] {
				t.Errorf("%s:\n%s\n%s", p.Name, first[k], again)
			}
		})
	}
	wait.Wait()
	if different := slices.Compact(slices.Sorted(slices.Values(first))); len(different) < len(policies)-2 {
		t.Errorf("%d policies have only %d results", len(policies), len(different))
	}
}

package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
)

// realChoice asks kube-scheduler's own loop about a pod. It returns the node, empty
// if there is none, and how many nodes were feasible.
func (r *run) realChoice(t *testing.T, pod *v1.Pod) (node string, feasible int) {
	t.Helper()
	s := r.scheduler
	if err := s.Made.Cache.UpdateSnapshot(klog.Background(), s.Snapshot); err != nil {
		t.Fatal(err)
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	result, err := s.Made.SchedulePod(t.Context(), s.Framework, framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
	if fit := new(framework.FitError); errors.As(err, &fit) {
		return "", 0
	} else if err != nil {
		t.Fatal(err)
	}
	return result.SuggestedHost, result.FeasibleNodes
}

// scores returns the total scores of the nodes on which a pod fits.
func (r *run) scores(t *testing.T, pod *v1.Pod) map[string]int64 {
	t.Helper()
	s := r.scheduler
	all, err := s.Snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	state := framework.NewCycleState()
	if _, status, _ := s.Framework.RunPreFilterPlugins(t.Context(), state, pod); status.IsRejected() {
		return nil
	}
	fit := all[:0:0]
	for _, n := range all {
		if s.Framework.RunFilterPlugins(t.Context(), state, pod, n).IsSuccess() {
			fit = append(fit, n)
		}
	}
	if status := s.Framework.RunPreScorePlugins(t.Context(), state, pod, fit); !status.IsSuccess() {
		t.Fatal(status)
	}
	list, status := s.Framework.RunScorePlugins(t.Context(), state, pod, fit)
	if !status.IsSuccess() {
		t.Fatal(status)
	}
	scores := map[string]int64{}
	for _, n := range list {
		scores[n.Name] = n.TotalScore
	}
	return scores
}

// At every placement of random runs, our loop takes a node that kube-scheduler's own
// loop could take.
func TestChoosesAsKubeScheduler(t *testing.T) {
	for _, policy := range []string{"default", "imagelocality-full", "image-name", "prototype", "lrscheduler", "layerlocality"} {
		t.Run(policy, func(t *testing.T) {
			for seed := range uint64(3) {
				random := rand.New(rand.NewPCG(seed, 9))
				r := begin(t, policy, randomPlan(random, 2+random.IntN(15), 120), nil)
				placed, refused, choices := 0, 0, 0
				check := func(p *pod) {
					real, _ := r.realChoice(t, p.object)
					scores := r.scores(t, p.object)
					ours, err := r.scheduler.Schedule(p.object)
					if err != nil {
						t.Fatal(err)
					}
					if (real == "") != (ours == "") || (real == "") != (len(scores) == 0) {
						t.Fatalf("seed %d at %s: kube-scheduler chose %q, we %q; %d nodes fit", seed, r.q.now, real, ours, len(scores))
					}
					if ours == "" {
						refused++
						return
					}
					placed++
					least := scores[ours]
					for _, score := range scores {
						if score > scores[ours] {
							t.Fatalf("seed %d at %s: %s has %d points, scores are %v", seed, r.q.now, ours, scores[ours], scores)
						}
						least = min(least, score)
					}
					if scores[real] != scores[ours] {
						t.Fatalf("seed %d at %s: kube-scheduler chose %s with %d points, we %s with %d", seed, r.q.now, real, scores[real], ours, scores[ours])
					}
					if least < scores[ours] {
						choices++
					}
					r.forget(t, p.object, ours)
				}
				for r.step() {
					// A pod of any kind, in the state after every event.
					image := r.anyImage(random)
					check(r.newPod(image, []string{"", "app1", "d1"}[random.IntN(3)], 100*random.Int64N(130), 1<<20, random.IntN(4) == 0, image))
				}
				if r.err != nil {
					t.Fatal(r.err)
				}
				if placed == 0 || refused == 0 || choices == 0 {
					t.Errorf("seed %d: %d pods placed, %d refused, %d with a choice: all should happen", seed, placed, refused, choices)
				}
			}
		})
	}
}

// randomPlan has pods of all kinds for nodes of several sizes.
func randomPlan(random *rand.Rand, nodes, pods int) *workload.Plan {
	plan := &workload.Plan{Nodes: nodesOf(nodes)}
	for k := range 15 {
		plan.Images = append(plan.Images, imageOf(fmt.Sprintf("quay.io/i%d:1", k),
			fmt.Sprint("base", k%3), 30, fmt.Sprint("l", random.IntN(10)), 1+random.IntN(40), fmt.Sprint("own", k), 1+random.IntN(300)))
	}
	for i := range plan.Nodes {
		plan.Nodes[i].MilliCPU *= 1 + random.Int64N(3)
		plan.Nodes[i].Pods = 5 + random.Int64N(20)
		if random.IntN(3) == 0 {
			plan.Nodes[i].Holds = []string{plan.Images[random.IntN(15)].Image}
		}
	}
	at := time.Duration(0)
	for k := range pods {
		image, cpu, memory := plan.Images[random.IntN(15)].Image, 100*random.Int64N(15), random.Int64N(1<<30)
		e := workload.Event{At: at}
		switch random.IntN(5) {
		case 0:
			e.Deploy = &workload.Deployment{Name: fmt.Sprint("d", random.IntN(4)), Image: image, Replicas: random.IntN(5), MilliCPU: cpu, Memory: memory, Apart: random.IntN(2) == 0}
		case 1:
			e.Pod = &workload.Pod{Image: image, App: fmt.Sprint("app", k%5), MilliCPU: cpu, Memory: memory, Lifetime: upTo(random, 5*time.Minute)}
		default:
			e.Pod = &workload.Pod{Image: image, MilliCPU: cpu, Memory: memory, Lifetime: upTo(random, 10*time.Minute)}
		}
		plan.Events = append(plan.Events, e)
		at += upTo(random, 8*time.Second)
	}
	// One pod that certainly fits on no node.
	plan.Events = append(plan.Events, workload.Event{At: at, Pod: &workload.Pod{Image: plan.Images[0].Image, MilliCPU: 1 << 20}})
	return plan
}

// Above 100 nodes, kube-scheduler looks only for some feasible nodes.
func TestLooksForAsManyNodes(t *testing.T) {
	image := []dataset.Image{imageOf("a", "a", 1)}
	for _, n := range []int{1, 50, 99, 100, 101, 125, 249, 250, 600, 1250, 3000, 5624, 5625, 7000} {
		for _, policy := range []string{"default", "layerlocality", "greedy"} {
			if policy == "greedy" && n > 250 {
				continue // this policy looks at all nodes: it takes long and tests nothing new
			}
			r := begin(t, policy, &workload.Plan{Nodes: nodesOf(n), Images: image}, nil)
			pod := r.newPod("a", "", 100, 1, false, "")
			for range 3 {
				_, want := r.realChoice(t, pod.object)
				if policy == "greedy" && want != n {
					t.Errorf("%s, %d nodes: kube-scheduler looks for %d", policy, n, want)
				}
				if got := r.scheduler.Enough(n); got != want {
					t.Errorf("%s, %d nodes: we look for %d, kube-scheduler for %d", policy, n, got, want)
				}
			}
		}
	}
}

// The loop begins where it stopped the last time, so that all nodes get their turn.
func TestNodesTakeTurns(t *testing.T) {
	r := begin(t, "default", &workload.Plan{Nodes: nodesOf(250), Images: []dataset.Image{imageOf("a", "a", 1)}}, nil)
	s := r.scheduler
	if err := s.Made.Cache.UpdateSnapshot(klog.Background(), s.Snapshot); err != nil {
		t.Fatal(err)
	}
	all, err := s.Snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	pod, seen := r.newPod("a", "", 100, 1, false, "").object, map[string]int{}
	for range 5 { // 120 nodes each
		found, err := s.Filter(framework.NewCycleState(), pod, all)
		if err != nil || len(found) != 120 {
			t.Fatalf("%d nodes, %v", len(found), err)
		}
		for _, n := range found {
			seen[n.Node().Name]++
		}
	}
	for _, n := range all {
		if times := seen[n.Node().Name]; times != 2 && times != 3 {
			t.Errorf("%s was looked at %d times in 600", n.Node().Name, times)
		}
	}
}

// Nodes of equal score are chosen equally often.
func TestTies(t *testing.T) {
	r := begin(t, "default", &workload.Plan{Nodes: nodesOf(10), Images: []dataset.Image{imageOf("a", "a", 1)}}, nil)
	count := map[string]int{}
	pod := r.newPod("a", "", 100, 1, false, "").object
	for range 2000 {
		node, err := r.scheduler.Schedule(pod)
		if err != nil {
			t.Fatal(err)
		}
		count[node]++
		r.forget(t, pod, node)
	}
	for _, m := range r.order {
		if n := count[m.Name]; n < 130 || n > 270 { // 5 standard deviations
			t.Errorf("%s was chosen %d times in 2000", m.Name, n)
		}
	}
}

// forget undoes the placement of a pod.
func (r *run) forget(t *testing.T, pod *v1.Pod, node string) {
	t.Helper()
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = node
	r.scheduler.Framework.RunReservePluginsUnreserve(t.Context(), framework.NewCycleState(), assumed, node)
	if err := r.scheduler.Made.Cache.ForgetPod(klog.Background(), assumed); err != nil {
		t.Fatal(err)
	}
}

func (r *run) anyImage(random *rand.Rand) string {
	names := slices.Sorted(maps.Keys(r.images))
	return names[random.IntN(len(names))]
}

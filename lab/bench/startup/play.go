package startup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// requests of pods, as shares of a node's CPU, all equally frequent. So 60 pods
// on 4 nodes request three quarters of all CPU.
var requests = []float64{0.025, 0.05, 0.075}

// burstGap is the time before each burst: nodes have pulled what came before.
const burstGap = time.Minute

// noLimit is the disk size of a node: the kubelets of the local cluster remove
// no images.
const noLimit = 1 << 40

// payload is the share of a link that is left for the data itself: of a frame
// of 1,514 bytes, 66 are the headers of Ethernet, IP and TCP with timestamps.
const payload = 1448.0 / 1514

// node returns the properties of each node of the cluster. The number of
// processors depends on the machine; requests are shares of it.
func (c *Config) node(ctx context.Context, lab *scenario.Lab) (workload.Node, error) {
	nodes, err := lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return workload.Node{}, err
	}
	if len(nodes.Items) == 0 {
		return workload.Node{}, errors.New("the cluster has no nodes")
	}
	allocatable := nodes.Items[0].Status.Allocatable
	return workload.Node{
		MilliCPU: allocatable.Cpu().MilliValue(),
		Memory:   allocatable.Memory().Value(),
		Pods:     allocatable.Pods().Value(),
		Disk:     noLimit,
		Link:     payload * float64(c.Bandwidth) / 8,
	}, nil
}

// plan draws the workload: pods come one by one and stay, so that the nodes
// fill up and balance matters more and more. Bursts of the smallest pods come last.
func (c *Config) plan(images []dataset.Image, node workload.Node) (*workload.Plan, error) {
	arrivals := workload.Arrivals{
		Cluster:  workload.Cluster{Nodes: c.Nodes, Node: node},
		Pods:     c.Pods,
		Exponent: c.Exponent,
		Rate:     1 / (c.Interval.Seconds() * float64(c.Nodes)),
	}
	for _, share := range requests {
		arrivals.Sizes = append(arrivals.Sizes, workload.Size{Weight: 1, MilliCPU: int64(share * float64(node.MilliCPU))})
	}
	var plan *workload.Plan
	var err error
	if r := rand.New(rand.NewPCG(c.Seed, 2)); c.Bursts > 0 {
		bursts := workload.Batches{Before: arrivals, Batches: c.Bursts, Pods: c.BurstPods, Gap: burstGap, Size: arrivals.Sizes[0]}
		plan, err = bursts.Plan(r, images)
	} else {
		plan, err = arrivals.Plan(r, images)
	}
	if err != nil {
		return nil, err
	}
	for i := range plan.Nodes {
		plan.Nodes[i].Name = fmt.Sprintf("n%d", i+1) // as package cluster calls them
	}
	return plan, nil
}

// Start is the result for a pod. Times are from the start of the run.
type Start struct {
	Pod      string `json:"pod"`
	Image    string `json:"image"`
	MilliCPU int64  `json:"milliCPU"`
	Node     string `json:"node"`
	// Created is the time just before the request that creates the pod. Placed is
	// when a watch reported its node. Ready is when the watch reported that the
	// pod is ready: its container has started.
	Created time.Duration `json:"created"`
	Placed  time.Duration `json:"placed"`
	Ready   time.Duration `json:"ready"`
}

// patience is how long after the creation of the last pod all pods must be
// ready.
const patience = 5 * time.Minute

// play creates each pod of the plan at its time, no matter whether earlier pods
// have started, and watches until all are ready.
func play(ctx context.Context, lab *scenario.Lab, plan *workload.Plan, scheduler string) ([]Start, error) {
	starts := make([]Start, len(plan.Events))
	index := map[string]int{}
	for i, name := range scenario.Names("pod", len(starts)) {
		pod := plan.Events[i].Pod
		if pod == nil {
			return nil, fmt.Errorf("event %d of the plan is not a pod", i)
		}
		starts[i] = Start{Pod: name, Image: pod.Image, MilliCPU: pod.MilliCPU}
		index[name] = i
	}
	ctx, cancel := context.WithTimeout(ctx, plan.Events[len(plan.Events)-1].At+patience)
	defer cancel()
	pods, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for i := range starts {
			select {
			case <-time.After(time.Until(begin.Add(plan.Events[i].At))):
			case <-ctx.Done():
				return nil // the other goroutine returns the cause
			}
			pod := plan.Events[i].Pod
			starts[i].Created = time.Since(begin)
			if err := lab.Submit(ctx, scenario.Pod{Name: starts[i].Pod, Image: pod.Image, Scheduler: scheduler, MilliCPU: pod.MilliCPU}); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() error {
		ready := 0
		_, err := watchtools.UntilWithoutRetry(ctx, pods, func(event watch.Event) (bool, error) {
			if event.Type == watch.Error {
				return false, apierrors.FromObject(event.Object)
			}
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return false, nil
			}
			i, ok := index[pod.Name]
			if !ok {
				return false, nil
			}
			now := time.Since(begin)
			if starts[i].Node == "" && pod.Spec.NodeName != "" {
				starts[i].Node, starts[i].Placed = pod.Spec.NodeName, now
			}
			if starts[i].Ready == 0 && isReady(pod) {
				starts[i].Ready = now
				ready++
			}
			return ready == len(starts), nil
		})
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err() // the watch reports it only as a timeout
			}
			return fmt.Errorf("%d of %d pods were ready: %w", ready, len(starts), err)
		}
		return nil
	})
	return starts, group.Wait()
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

package startup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/layer-locality/layer-locality/lab/eval/dataset"
	"github.com/layer-locality/layer-locality/lab/eval/sim/workload"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	images := dataset.Generate(rand.New(rand.NewPCG(1, 1)), 24)
	config := Config{Seed: 1, Nodes: 4, Pods: 60, Interval: 1500 * time.Millisecond, Exponent: 1}
	node := workload.Node{MilliCPU: 2000, Memory: 8 << 30, Pods: 110, Disk: noLimit, Link: 50 * workload.Mbit}
	plan, err := config.plan(images, node)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(plan.Nodes) != 4 || plan.Nodes[0].Name != "n1" || plan.Nodes[3].Name != "n4" {
		t.Errorf("nodes %v: want n1 to n4, as the cluster calls them", plan.Nodes)
	}
	var sum int64
	for _, e := range plan.Events {
		if e.Pod == nil || e.Pod.Lifetime != 0 {
			t.Fatalf("event %+v: want pods that stay", e)
		}
		sum += e.Pod.MilliCPU
	}
	// All pods have to fit, but must request enough that balance matters.
	if share := float64(sum) / 8000; len(plan.Events) != 60 || share < 0.6 || share > 0.9 {
		t.Errorf("%d pods request %.2f of the CPU, want 60 and about 0.75", len(plan.Events), share)
	}
	again, err := config.plan(images, node)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plan, again) {
		t.Error("two plans of one seed differ")
	}
	bursts := config
	bursts.Pods, bursts.Bursts, bursts.BurstPods = 24, 3, 15
	if plan, err := bursts.plan(images, node); err != nil || plan.Validate() != nil || len(plan.Events) != 24+3*15 || plan.History != 0 {
		t.Errorf("with bursts: %d events, %v", len(plan.Events), err)
	} else {
		before := map[string]bool{}
		for i, e := range plan.Events {
			if i >= 24 && (before[e.Pod.Image] != ((i-24)%15 > 0) || e.Pod.MilliCPU != 50 || e.At != plan.Events[24].At+time.Duration((i-24)/15)*burstGap) {
				t.Errorf("event %d: %+v at %s", i, e.Pod, e.At)
			}
			before[e.Pod.Image] = true
		}
	}
	config.Seed = 2
	if other, err := config.plan(images, node); err != nil || reflect.DeepEqual(plan.Events, other.Events) {
		t.Errorf("two seeds give the same events, or fail: %v", err)
	}
}

func threePods() *workload.Plan {
	plan := &workload.Plan{}
	for i, image := range []string{"one", "two", "one"} {
		plan.Events = append(plan.Events, workload.Event{
			At: time.Duration(i) * 20 * time.Millisecond, Pod: &workload.Pod{Image: image, MilliCPU: int64(100 * (i + 1))},
		})
	}
	return plan
}

// startAll does the work of scheduler and kubelets: once there are n pods, it
// starts them, the last one first.
func startAll(ctx context.Context, client kubernetes.Interface, n int) error {
	all, err := allOf(ctx, client, n)
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	for _, pod := range slices.Backward(all) {
		if pod.Spec.SchedulerName != "a-scheduler" {
			return fmt.Errorf("%s is for the scheduler %q", pod.Name, pod.Spec.SchedulerName)
		}
		pod.Spec.NodeName = "node-of-" + pod.Name
		placed, err := pods.Update(ctx, &pod, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		placed.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if _, err := pods.UpdateStatus(ctx, placed, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func TestPlay(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	started := make(chan error, 1)
	go func() { started <- startAll(t.Context(), client, 3) }()
	plan := threePods()
	starts, err := play(t.Context(), &scenario.Lab{Client: client}, plan, "a-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	for i, s := range starts {
		event := plan.Events[i]
		if s.Node != "node-of-"+s.Pod || s.Image != event.Pod.Image || s.MilliCPU != event.Pod.MilliCPU {
			t.Errorf("pod %d: %+v", i, s)
		}
		if s.Created < event.At || s.Placed <= s.Created || s.Ready < s.Placed {
			t.Errorf("pod %d, to be created at %s: %+v", i, event.At, s)
		}
	}
	if starts[2].Ready > starts[0].Ready {
		t.Errorf("the pod that was ready first has a later time: %+v", starts)
	}
}

// Pods are created at their time, even if none starts.
func TestPlayInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	created := make(chan error, 1)
	go func() {
		defer cancel()
		_, err := allOf(t.Context(), client, 3)
		created <- err
	}()
	_, err := play(ctx, &scenario.Lab{Client: client}, threePods(), "a-scheduler")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "0 of 3 pods were ready") {
		t.Errorf("interrupted before a pod started, and the error is: %v", err)
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}

// allOf waits until there are n pods.
func allOf(ctx context.Context, client kubernetes.Interface, n int) (pods []corev1.Pod, err error) {
	err = scenario.Poll(ctx, func(ctx context.Context) error {
		list, err := client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if pods = list.Items; len(pods) < n {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	return pods, err
}

//go:build e2e

package extender

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// hollow is the label and the taint of Nodes without a kubelet: nothing starts there, and
// pods are deleted at once.
const hollow = "hollow"

// TestConnections has the scheduler place 1,000 pods, of which each is a request: they take
// few connections. The Nodes are objects only: what is counted is between scheduler and
// layer-extender.
func TestConnections(t *testing.T) {
	livetest.Long(t, "TestConnections of extender/handler, without a cluster")
	const pods, most = 1000, 10
	for _, name := range []string{"hollow-1", "hollow-2"} {
		addHollow(t, name)
	}
	connections := func() int {
		states, err := lab.MetricOf(t.Context(), addons.ExtenderURL(c), "layer_extender_connections_total", "state")
		must(t, err)
		if states["opened"] == 0 || states["opened"] < states["closed"] {
			t.Fatalf("connections: %v", states)
		}
		return states["opened"]
	}
	api := lab.Client.CoreV1().Pods(metav1.NamespaceDefault)
	selected := metav1.ListOptions{LabelSelector: hollow}
	remove := func(ctx context.Context) error {
		return api.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, selected)
	}
	t.Cleanup(func() {
		if err := remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	opened, requests, begin := connections(), answered(t), time.Now()
	for _, name := range scenario.Names("many", pods) {
		_, err := api.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{hollow: ""}},
			Spec: corev1.PodSpec{
				SchedulerName: scenario.Layers,
				NodeSelector:  map[string]string{hollow: ""},
				Tolerations:   []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // also of a kubelet that is silent
				Containers:    []corev1.Container{{Name: "main", Image: "many:v1"}},
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	livetest.Eventually(t, 3*time.Minute, fmt.Sprintf("%d pods have a node", pods), func(ctx context.Context) error {
		waiting, err := api.List(ctx, metav1.ListOptions{LabelSelector: hollow, FieldSelector: "spec.nodeName=", Limit: 1})
		if err == nil && len(waiting.Items) > 0 {
			err = errors.New("some have none")
		}
		return err
	})
	took := time.Since(begin)
	opened, requests = connections()-opened, answered(t)-requests
	t.Logf("%d pods in %.1f s: %d answers, %d new connections", pods, took.Seconds(), requests, opened)
	// On a busy machine, the scheduler may go on without an answer.
	if requests < pods*9/10 {
		t.Errorf("%d answers for %d pods", requests, pods)
	}
	if opened > most {
		t.Errorf("%d new connections for %d pods, want %d at most", opened, pods, most)
	}
}

// addHollow adds a Node without a kubelet until the end of the test.
func addHollow(t *testing.T, name string) {
	t.Helper()
	nodes := lab.Client.CoreV1().Nodes()
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("1000Gi"), corev1.ResourcePods: resource.MustParse("1000"),
	}
	_, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{hollow: ""}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: hollow, Effect: corev1.TaintEffectNoSchedule}}},
		Status:     corev1.NodeStatus{Capacity: resources, Allocatable: resources},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestRequire has pods wait for a node with their layers: one is placed when a node has them, and pulls nothing; another
// one once its time is over.
func TestRequire(t *testing.T) {
	use(t, "n1", "n2", "n3")
	warm, cold := hubImage(t, "require:v1", 20_000_000, 2), hubImage(t, "require:v2", 2_000_000, 2)
	pods := lab.Client.CoreV1().Pods(metav1.NamespaceDefault)
	removeAtEnd(t, "require-warm", "require-cold")
	for name, image := range map[string]string{"require-warm": warm.Reference, "require-cold": cold.Reference} {
		timeout := map[string]string{"require-warm": "10m", "require-cold": "20s"}[name]
		seconds := int64(1)
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"layerlocality.io/require": "100%", "layerlocality.io/require-timeout": timeout}},
			Spec: corev1.PodSpec{
				SchedulerName: scenario.Layers, TerminationGracePeriodSeconds: &seconds,
				Containers: []corev1.Container{{Name: "main", Image: image}},
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	scheduled := func(ctx context.Context, name string) (*corev1.Pod, *corev1.PodCondition, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		for i := range pod.Status.Conditions {
			if pod.Status.Conditions[i].Type == corev1.PodScheduled {
				return pod, &pod.Status.Conditions[i], nil
			}
		}
		return pod, nil, fmt.Errorf("pod %s has no condition PodScheduled", name)
	}
	livetest.Eventually(t, settled, "the pod states why it waits", func(ctx context.Context) error {
		pod, condition, err := scheduled(ctx, "require-warm")
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != "" || !strings.Contains(condition.Message, "node(s) had less than 100% of the layers of the pod's images") {
			return fmt.Errorf("on node %q, %q", pod.Spec.NodeName, condition.Message)
		}
		return nil
	})

	provide(t, placement{Node: "n2", Reference: warm.Reference, Image: warm})
	before, err := scenario.Pulled(c, "library/require")
	must(t, err)
	nodes, err := lab.Placed(t.Context(), "require-warm")
	must(t, err)
	must(t, lab.Ready(t.Context(), "require-warm"))
	if nodes["require-warm"] != "n2" {
		t.Errorf("on %s, n2 has its layers", nodes["require-warm"])
	}
	must(t, lab.Ready(t.Context(), "require-cold"))
	after, err := scenario.Pulled(c, "library/require")
	must(t, err)
	if pulled := after.Total() - before.Total(); pulled > size(cold)+scenario.Measured {
		t.Errorf("%d bytes pulled, the image that no node had has %d", pulled, size(cold))
	}
	pod, condition, err := scheduled(t.Context(), "require-cold")
	must(t, err)
	if waited := condition.LastTransitionTime.Sub(pod.CreationTimestamp.Time); waited < 19*time.Second {
		t.Errorf("a pod whose layers no node has was placed after %s", waited)
	}
}

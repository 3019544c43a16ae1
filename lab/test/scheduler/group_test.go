//go:build e2e && !kubernetes1.35 && !kubernetes1.37

package scheduler

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/lab/scenario"
)

func init() {
	groupGates = map[string]bool{"GenericWorkload": true, "GangScheduling": true, "TopologyAwareWorkloadScheduling": true}
	groupArgs = []string{"--runtime-config=scheduling.k8s.io/v1alpha2=true"}
}

// TestGroup has groups of pods go to the rack of a node that has their image. Two nodes are in each rack.
func TestGroup(t *testing.T) {
	const rack, pods = "example.com/rack", 3
	racks := map[string]string{"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
	label := func(ctx context.Context, node, value string) error {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, rack, value)
		_, err := lab.Client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	for node, value := range racks {
		must(t, label(t.Context(), node, fmt.Sprintf("%q", value)))
		t.Cleanup(func() {
			if err := label(context.Background(), node, "null"); err != nil {
				t.Error(err)
			}
		})
	}
	groups := lab.Client.SchedulingV1alpha2().PodGroups(metav1.NamespaceDefault)
	for i, holder := range []string{"n3", "n1", "n4", "n2"} {
		name := fmt.Sprintf("group-%d", i+1)
		image := hubImage(t, name+":v1", 40_000_000, 2)
		provide(t, placement{Node: holder, Reference: image.Reference, Image: image})
		_, err := groups.Create(t.Context(), &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1alpha2.PodGroupSpec{
			SchedulingPolicy:      schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: pods}},
			SchedulingConstraints: &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: rack}}},
		}}, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			if err := groups.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		names := scenario.Names(name, pods)
		removeAtEnd(t, names...)
		for _, pod := range names {
			seconds := int64(1)
			_, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: pod},
				Spec: corev1.PodSpec{
					SchedulerName: scenario.Layers, SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &name}, TerminationGracePeriodSeconds: &seconds,
					Containers: []corev1.Container{{Name: "main", Image: image.Reference}},
				},
			}, metav1.CreateOptions{})
			must(t, err)
		}
		nodes, err := lab.Placed(t.Context(), names...)
		must(t, err)
		for pod, node := range nodes {
			if racks[node] != racks[holder] {
				t.Errorf("pod %s is on %s in rack %s, %s in rack %s has its image", pod, node, racks[node], holder, racks[holder])
			}
		}
		must(t, lab.Ready(t.Context(), names...))
	}
}

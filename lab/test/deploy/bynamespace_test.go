//go:build e2e

package deploy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

const ours, theirs = "ours", "theirs" // namespaces, with the label and without

// testByNamespace gives the pods of a namespace to the second scheduler, beside the
// cluster's own, on which nothing is changed.
func testByNamespace(t *testing.T, image string) {
	ctx := t.Context()
	apply(t, variant(t, "second-scheduler", image), name)
	elected(t, name, name)
	policy := render(t, filepath.Join(deployed, "scheduler", "by-namespace"), map[string]any{})
	apply(t, policy, "no-lease-of-a-policy")
	label := map[string]string{"layerlocality.io/scheduler": scheduler}
	namespaceWith(t, ours, label)
	namespaceWith(t, theirs, nil)
	// Labelled by mistake: its pods stay with the cluster's own scheduler.
	patchLabel := func(value string) {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"layerlocality.io/scheduler":%s}}}`, value)
		_, err := client.CoreV1().Namespaces().Patch(context.Background(), namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	patchLabel(`"` + scheduler + `"`)
	t.Cleanup(func() { patchLabel("null") })

	livetest.Eventually(t, 3*time.Minute, "the policy works", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(ours).Create(ctx, pause("probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.SchedulerName != scheduler {
			err = fmt.Errorf("the pod is for %s", pod.Spec.SchedulerName)
		}
		return err
	})
	for _, test := range []struct {
		name, namespace, want string
		change                func(*corev1.Pod)
	}{
		{"in a labelled namespace", ours, scheduler, nil},
		{"in another namespace", theirs, corev1.DefaultSchedulerName, nil},
		{"in kube-system, labelled", namespace, corev1.DefaultSchedulerName, nil},
		{"names another", ours, "another", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "another" }},
		{"has a node", ours, corev1.DefaultSchedulerName, func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" }},
		{"of this project", ours, corev1.DefaultSchedulerName, func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"app.kubernetes.io/part-of": "layer-locality"}
		}},
		{"with labels and an owner", ours, scheduler, func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"app": "x"}
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x", UID: "x"}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := pause("try")
			if test.change != nil {
				test.change(pod)
			}
			made, err := client.CoreV1().Pods(test.namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			must(t, err)
			if made.Spec.SchedulerName != test.want {
				t.Errorf("the pod is for %s, want %s", made.Spec.SchedulerName, test.want)
			}
		})
	}
	for space, by := range map[string]string{ours: scheduler, theirs: corev1.DefaultSchedulerName} {
		_, err := client.CoreV1().Pods(space).Create(ctx, pause("placed"), metav1.CreateOptions{})
		must(t, err)
		must(t, c.WaitPodRunning(ctx, space, "placed"))
		placedBy(t, space, "placed", by)
	}
	t.Run("DaemonSet", testDaemonSet)
	t.Run("scheduler down", testSchedulerDown)
}

// testDaemonSet checks that the pods of a DaemonSet stay with the cluster's own scheduler.
func testDaemonSet(t *testing.T) {
	labels := map[string]string{"app": "daemon"}
	template := pause("").Spec
	_, err := client.AppsV1().DaemonSets(ours).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "daemon"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template,
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	livetest.Eventually(t, 3*time.Minute, "a pod on each node", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(ours).List(ctx, metav1.ListOptions{LabelSelector: "app=daemon"})
		if err != nil {
			return err
		}
		var nodes []string
		for _, pod := range pods.Items {
			if pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
				t.Fatalf("%s is for %s", pod.Name, pod.Spec.SchedulerName)
			}
			if pod.Spec.NodeName != "" {
				nodes = append(nodes, pod.Spec.NodeName)
			}
		}
		if slices.Sort(nodes); !slices.Equal(nodes, []string{"n1", "n2"}) {
			return fmt.Errorf("on %q", nodes)
		}
		return nil
	})
}

// testSchedulerDown stops the second scheduler: pods of its namespaces wait, those of others
// do not; without the label, new pods go the usual way; and the waiting ones are placed when
// it is back.
func testSchedulerDown(t *testing.T) {
	ctx := t.Context()
	scale := func(replicas int32) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		_, err := client.AppsV1().Deployments(namespace).Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	scale(0)
	livetest.Eventually(t, 3*time.Minute, "no scheduler runs", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	submit := func(space, podName string) {
		t.Helper()
		_, err := client.CoreV1().Pods(space).Create(ctx, pause(podName), metav1.CreateOptions{})
		must(t, err)
	}
	submit(ours, "waits")
	submit(theirs, "goes")
	must(t, c.WaitPodRunning(ctx, theirs, "goes"))
	pod, err := client.CoreV1().Pods(ours).Get(ctx, "waits", metav1.GetOptions{})
	must(t, err)
	if pod.Spec.NodeName != "" || pod.Spec.SchedulerName != scheduler {
		t.Errorf("for %s, on %q", pod.Spec.SchedulerName, pod.Spec.NodeName)
	}
	// The way out that the documentation names.
	_, err = client.CoreV1().Namespaces().Patch(ctx, ours, types.MergePatchType, []byte(`{"metadata":{"labels":{"layerlocality.io/scheduler":null}}}`), metav1.PatchOptions{})
	must(t, err)
	livetest.Eventually(t, 3*time.Minute, "new pods go the usual way", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(ours).Create(ctx, pause("usual"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
			err = fmt.Errorf("the pod is for %s", pod.Spec.SchedulerName)
		}
		return err
	})
	submit(ours, "usual")
	must(t, c.WaitPodRunning(ctx, ours, "usual"))
	scale(2)
	must(t, c.WaitPodRunning(ctx, ours, "waits"))
	placedBy(t, ours, "waits", scheduler)
}

// pause returns a pod that pauses, and names no scheduler.
func pause(podName string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "main", Image: c.Registry().Address + "/pause:1"}},
		},
	}
}

// namespaceWith makes a namespace with labels, until the end of the test.
func namespaceWith(t *testing.T, space string, labels map[string]string) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space, Labels: labels}}, metav1.CreateOptions{})
	must(t, err)
	livetest.Eventually(t, 3*time.Minute, "the service account of "+space, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(space).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() { // the test's context has ended by then
		err := client.CoreV1().Namespaces().Delete(context.Background(), space, metav1.DeleteOptions{})
		if err == nil {
			err = poll.Until(context.Background(), 200*time.Millisecond, 2*time.Minute, func(ctx context.Context) error {
				_, err := client.CoreV1().Namespaces().Get(ctx, space, metav1.GetOptions{})
				if err == nil {
					return errors.New("it is still there")
				}
				if apierrors.IsNotFound(err) {
					return nil
				}
				return err
			})
		}
		if err != nil {
			t.Errorf("namespace %s: %v", space, err)
		}
	})
}

// placedBy checks which scheduler placed a pod.
func placedBy(t *testing.T, space, podName, by string) {
	t.Helper()
	livetest.Eventually(t, 3*time.Minute, "the event of "+podName, func(ctx context.Context) error {
		events, err := client.EventsV1().Events(space).List(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled,regarding.name=" + podName})
		if err != nil {
			return err
		}
		if len(events.Items) != 1 || events.Items[0].ReportingController != by {
			return fmt.Errorf("events %+v, want one of %s", events.Items, by)
		}
		return nil
	})
}

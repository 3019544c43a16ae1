//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

// TestStatesOfAKubelet drives what a kubelet reports of a pod through the scheduler: an init container runs, a pull
// takes long, an image is changed in place, an ephemeral container comes.
func TestStatesOfAKubelet(t *testing.T) {
	use(t, "n1", "n2", "n3")
	const imageBytes = 40_000_000
	first, main, next, debug := hubImage(t, "states-init:v1", 2_000_000, 1), hubImage(t, "states:v1", imageBytes, 2), hubImage(t, "states:v2", imageBytes, 2), hubImage(t, "states-debug:v1", imageBytes, 2)
	pods := lab.Client.CoreV1().Pods(metav1.NamespaceDefault)
	seconds := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "states"},
		Spec: corev1.PodSpec{
			SchedulerName: gathering, TerminationGracePeriodSeconds: &seconds,
			InitContainers: []corev1.Container{{Name: "init", Image: first.Reference}}, // it does not end
			Containers:     []corev1.Container{{Name: "main", Image: main.Reference}},
		},
	}
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Remove(context.Background(), "states", "states-2"); err != nil {
			t.Error(err)
		}
	})
	nodes, err := lab.Placed(t.Context(), "states")
	must(t, err)
	node := nodes["states"]

	// is waits until the scheduler has so much of an image on the node, and so much to pull on its link.
	is := func(what, image string, good func(r scenario.Rating) bool) {
		t.Helper()
		livetest.Eventually(t, settled, what, func(ctx context.Context) error {
			ratings, err := lab.Rate(ctx, image)
			if err != nil {
				return err
			}
			r, ok := ratings.Node(node)
			if !ok || !good(r) {
				return fmt.Errorf("%s: the scheduler has of %s on %s: %+v", what, image, node, r)
			}
			return nil
		})
	}
	// The next pod of the template finds the image on its way, and no link is busy with it.
	is("an init container runs", main.Reference, func(r scenario.Rating) bool { return r.ArrivingBytes >= imageBytes && r.PendingBytes == 0 })
	must(t, lab.Remove(t.Context(), "states"))
	is("the pod is gone", main.Reference, func(r scenario.Rating) bool { return r.ArrivingBytes == 0 && r.PendingBytes == 0 })

	// On a slow link, so that each state can be seen.
	for _, n := range c.Nodes() {
		must(t, n.SetBandwidth(20_000_000))
		t.Cleanup(func() {
			if err := n.SetBandwidth(bandwidth); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: "states-2", Image: main.Reference, Scheduler: gathering}))
	nodes, err = lab.Placed(t.Context(), "states-2")
	must(t, err)
	node = nodes["states-2"]
	is("the image is pulled", main.Reference, func(r scenario.Rating) bool { return r.ArrivingBytes > 0 && r.PendingBytes > 0 })
	must(t, lab.Ready(t.Context(), "states-2"))
	is("it runs", main.Reference, func(r scenario.Rating) bool {
		return r.MissingBytes == 0 && r.ArrivingBytes == 0 && r.PendingBytes == 0
	})

	update := func(subresource bool, change func(*corev1.Pod)) {
		t.Helper()
		livetest.Eventually(t, settled, "the pod is changed", func(ctx context.Context) error {
			got, err := pods.Get(ctx, "states-2", metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(got)
			if subresource {
				_, err = pods.UpdateEphemeralContainers(ctx, got.Name, got, metav1.UpdateOptions{})
			} else {
				_, err = pods.Update(ctx, got, metav1.UpdateOptions{})
			}
			return err
		})
	}
	update(false, func(p *corev1.Pod) { p.Spec.Containers[0].Image = next.Reference })
	is("its image is changed in place", next.Reference, func(r scenario.Rating) bool { return r.ArrivingBytes > 0 && r.PendingBytes > 0 })
	is("the new image is there", next.Reference, func(r scenario.Rating) bool { return r.MissingBytes == 0 && r.ArrivingBytes == 0 })
	update(true, func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: debug.Reference}}}
	})
	is("an ephemeral container comes", debug.Reference, func(r scenario.Rating) bool { return r.ArrivingBytes > 0 })
	is("its image is there", debug.Reference, func(r scenario.Rating) bool { return r.MissingBytes == 0 && r.ArrivingBytes == 0 })
}

// TestStatesThatLast has a kubelet report states in which a pod stays, and what they mean for its image.
func TestStatesThatLast(t *testing.T) {
	use(t, "n1", "n2", "n3")
	const imageBytes = 4_000_000
	secret := corev1.LocalObjectReference{Name: "nobody-has-it"}
	there := func(r scenario.Rating) bool { return r.PresentBytes > 0 && r.MissingBytes == 0 && r.PendingBytes == 0 }
	comes := func(r scenario.Rating) bool { return r.ArrivingBytes >= imageBytes && r.PendingBytes == 0 }
	fails := func(r scenario.Rating) bool {
		return r.PresentBytes == 0 && r.ArrivingBytes == 0 && r.PendingBytes == 0
	}
	tests := map[string]struct {
		change  func(*corev1.PodSpec)
		reasons []string
		means   func(scenario.Rating) bool
	}{
		"volume": {func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret.Name}}}}
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}} // else the kubelet does not wait for it
		}, []string{"ContainerCreating"}, comes},
		"configuration": {func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret}}}
		}, []string{"CreateContainerConfigError"}, there},
		"program": {func(s *corev1.PodSpec) { s.Containers[0].Command = []string{"/no/such/program"} }, []string{"CreateContainerError", "RunContainerError", "CrashLoopBackOff"}, there},
		"image":   {func(s *corev1.PodSpec) { s.Containers[0].Image += "-none" }, []string{"ErrImagePull", "ImagePullBackOff"}, fails},
		"never":   {func(s *corev1.PodSpec) { s.Containers[0].ImagePullPolicy = corev1.PullNever }, []string{"ErrImageNeverPull"}, fails},
	}
	pods := lab.Client.CoreV1().Pods(metav1.NamespaceDefault)
	for name, test := range tests {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "states-" + name}, Spec: corev1.PodSpec{
			SchedulerName: gathering, Containers: []corev1.Container{{Name: "main", Image: hubImage(t, "states-"+name+":v1", imageBytes, 2).Reference}},
		}}
		test.change(&pod.Spec)
		removeAtEnd(t, pod.Name)
		_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		must(t, err)
	}
	for name, test := range tests {
		livetest.Eventually(t, settled, name, func(ctx context.Context) error {
			pod, err := pods.Get(ctx, "states-"+name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if all := pod.Status.ContainerStatuses; len(all) == 0 || all[0].State.Waiting == nil || !slices.Contains(test.reasons, all[0].State.Waiting.Reason) {
				return fmt.Errorf("%+v, want one of %v", all, test.reasons)
			}
			ratings, err := lab.Rate(ctx, pod.Spec.Containers[0].Image)
			if err != nil {
				return err
			}
			if r, ok := ratings.Node(pod.Spec.NodeName); !ok || !test.means(r) {
				return fmt.Errorf("the scheduler has of %s on %s: %+v", pod.Spec.Containers[0].Image, pod.Spec.NodeName, r)
			}
			return nil
		})
	}
}

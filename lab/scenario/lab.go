package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// Lab runs pods on a cluster.
type Lab struct {
	Cluster *cluster.Cluster
	Client  kubernetes.Interface
	// Objects is a client of this project's resources.
	Objects client.Client
	// secure connects to servers of the control plane with an admin's rights.
	secure *http.Client
	// rater is the URL of the program that Rate asks, empty for the cluster's scheduler, and
	// profile its profile.
	rater, profile string
}

// NewLab makes a Lab for a running cluster.
func NewLab(c *cluster.Cluster) (*Lab, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	secure, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	objects, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: secure})
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfigAndClient(config, secure)
	return &Lab{Cluster: c, Client: kube, Objects: objects, secure: secure, profile: Layers}, err
}

// RateWith has Rate, and all that waits for its answer, ask a profile of another program
// than the cluster's scheduler.
func (l *Lab) RateWith(url, profile string) { l.rater, l.profile = url, profile }

// Pod describes a pod with one container, in the namespace default.
type Pod struct {
	Name  string
	Image string
	// Scheduler that places it, by its name.
	Scheduler string
	// Node, if set, gets the pod without a scheduler.
	Node string
	// MilliCPU and Memory (bytes) are the requests; 0 for none.
	MilliCPU, Memory int64
	// Extended is an extended resource of which the pod requests one, if any.
	Extended corev1.ResourceName
	// PullSecret is the imagePullSecret, if any.
	PullSecret string
	// PullPolicy is that of the container; if empty, what Kubernetes makes of the image's tag.
	PullPolicy corev1.PullPolicy
	// Model is the image or OCI artifact of an image volume, if any.
	Model string
}

func (p Pod) object() *corev1.Pod {
	no, second := false, int64(1)
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	if p.MilliCPU > 0 {
		requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(p.MilliCPU, resource.DecimalSI)
	}
	if p.Memory > 0 {
		requests[corev1.ResourceMemory] = *resource.NewQuantity(p.Memory, resource.BinarySI)
	}
	if p.Extended != "" {
		requests[p.Extended], limits[p.Extended] = resource.MustParse("1"), resource.MustParse("1")
	}
	var secrets []corev1.LocalObjectReference
	if p.PullSecret != "" {
		secrets = []corev1.LocalObjectReference{{Name: p.PullSecret}}
	}
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	if p.Model != "" {
		volumes = []corev1.Volume{{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: p.Model}}}}
		mounts = []corev1.VolumeMount{{Name: "model", MountPath: "/model"}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec: corev1.PodSpec{
			Volumes:                       volumes,
			SchedulerName:                 p.Scheduler,
			NodeName:                      p.Node,
			TerminationGracePeriodSeconds: &second,
			AutomountServiceAccountToken:  &no,
			ImagePullSecrets:              secrets,
			Containers: []corev1.Container{{
				Name: "main", Image: p.Image, ImagePullPolicy: p.PullPolicy, VolumeMounts: mounts,
				Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits},
			}},
		},
	}
}

// Submit creates pods, one after the other.
func (l *Lab) Submit(ctx context.Context, pods ...Pod) error {
	for _, pod := range pods {
		if _, err := l.pods().Create(ctx, pod.object(), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// Placed waits until the pods have a node, and returns the nodes by pod.
func (l *Lab) Placed(ctx context.Context, names ...string) (map[string]string, error) {
	nodes := map[string]string{}
	err := l.each(ctx, names, func(pod *corev1.Pod) error {
		if nodes[pod.Name] = pod.Spec.NodeName; pod.Spec.NodeName != "" {
			return nil
		}
		return errors.New("it has no node" + complaints(pod))
	})
	return nodes, err
}

// Ready waits until the pods are ready.
func (l *Lab) Ready(ctx context.Context, names ...string) error {
	return l.each(ctx, names, func(pod *corev1.Pod) error {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%s on node %q%s", pod.Status.Phase, pod.Spec.NodeName, complaints(pod))
	})
}

// Remove deletes the pods and waits until they are gone: their nodes have ended
// them, and their resources are free.
func (l *Lab) Remove(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := l.pods().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return Poll(ctx, func(ctx context.Context) error {
		there, err := l.list(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, ok := there[name]; ok {
				return fmt.Errorf("pod %s is still there", name)
			}
		}
		return nil
	})
}

// Drop deletes the pods at once. Their nodes end the started containers later.
func (l *Lab) Drop(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := l.pods().Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return nil
}

// Start is how a pod was started.
type Start struct {
	Node string
	// Pull is how long the pull of its image took according to the kubelet; 0 if
	// the image was there.
	Pull time.Duration
	// Bytes is what the registry sent for it, compressed.
	Bytes int64
}

// Start creates a pod, waits until it is ready and returns what that took. image
// is the image of the pod; no other pod may pull it meanwhile.
func (l *Lab) Start(ctx context.Context, pod Pod, image *images.Pushed) (Start, error) {
	repository := Repository(image)
	before, err := Pulled(l.Cluster, repository)
	if err != nil {
		return Start{}, err
	}
	if err := l.Submit(ctx, pod); err != nil {
		return Start{}, err
	}
	if err := l.Ready(ctx, pod.Name); err != nil {
		return Start{}, err
	}
	object, err := l.pods().Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return Start{}, err
	}
	after, err := Pulled(l.Cluster, repository)
	if err != nil {
		return Start{}, err
	}
	pull, err := l.pullTime(ctx, object)
	return Start{Node: object.Spec.NodeName, Pull: pull, Bytes: after.Total() - before.Total()}, err
}

// Try does what Start does, and then removes pod and image, so that the next one
// finds the nodes unchanged.
func (l *Lab) Try(ctx context.Context, pod Pod, image *images.Pushed) (Start, error) {
	start, err := l.Start(ctx, pod, image)
	if err != nil {
		return start, err
	}
	if err := l.Remove(ctx, pod.Name); err != nil {
		return start, err
	}
	return start, l.RemoveImage(ctx, start.Node, image.Reference)
}

// RemoveImage removes an image from a node. It waits until the containers are
// gone, because CRI-O does not remove an image before.
func (l *Lab) RemoveImage(ctx context.Context, node, reference string) error {
	return Poll(ctx, func(ctx context.Context) error {
		_, err := l.Cluster.Node(node).Exec(ctx, "crictl", "rmi", reference)
		return err
	})
}

var pulledIn = regexp.MustCompile(`^Successfully pulled image .* in (\S+) \(`)

// pullTime reads the kubelet's event about the image of a pod.
func (l *Lab) pullTime(ctx context.Context, pod *corev1.Pod) (pull time.Duration, err error) {
	err = Poll(ctx, func(ctx context.Context) error {
		events, err := l.Client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "reason=Pulled,involvedObject.uid=" + string(pod.UID),
		})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return fmt.Errorf("no event Pulled of pod %s", pod.Name)
		}
		pull = 0
		if found := pulledIn.FindStringSubmatch(events.Items[0].Message); found != nil {
			pull, err = time.ParseDuration(found[1])
		}
		return err
	})
	return pull, err
}

// FillingCPU returns a request, in millicores, that fits on any node once but
// not twice.
func (l *Lab) FillingCPU(ctx context.Context) (int64, error) {
	nodes, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	var least, most int64
	for i, node := range nodes.Items {
		cpu := node.Status.Allocatable.Cpu().MilliValue()
		if i == 0 {
			least, most = cpu, cpu
		}
		least, most = min(least, cpu), max(most, cpu)
	}
	if least == 0 || most >= 4*least/3*2 {
		return 0, fmt.Errorf("nodes of %d to %d millicores: want equal ones", least, most)
	}
	return 3 * least / 4, nil
}

// Family is the pair of images from the ancestor project: One = L1 L2 L3, Two =
// L1 L2 L4, all layers with the same size.
type Family struct{ One, Two *images.Pushed }

// PushFamily pushes such a pair to the cluster's registry, as NAME-one and
// NAME-two, with layers that no family of another name has.
func PushFamily(ctx context.Context, c *cluster.Cluster, name string, layerBytes int64) (Family, error) {
	layer := func(l string) images.Layer { return images.Layer{Name: name + "-" + l, Size: layerBytes} }
	push := func(suffix, own string) (*images.Pushed, error) {
		image, err := images.Build(images.Image{Layers: []images.Layer{layer("L1"), layer("L2"), layer(own)}})
		if err != nil {
			return nil, err
		}
		return images.Push(ctx, c.Registry().Address+"/"+name+"-"+suffix+":v1", image)
	}
	one, err := push("one", "L3")
	if err != nil {
		return Family{}, err
	}
	two, err := push("two", "L4")
	return Family{One: one, Two: two}, err
}

// Shared returns the layers that both images have and nodes report: those with
// at least 1 MiB.
func (f Family) Shared() []v1.Descriptor {
	var shared []v1.Descriptor
	for _, layer := range f.One.Layers {
		if layer.Size >= 1<<20 && slices.ContainsFunc(f.Two.Layers, func(other v1.Descriptor) bool { return other.Digest == layer.Digest }) {
			shared = append(shared, layer)
		}
	}
	return shared
}

// Repository returns the repository of an image in the registry.
func Repository(image *images.Pushed) string {
	_, path, _ := strings.Cut(image.Reference, "/")
	repository, _, _ := strings.Cut(path, ":")
	return repository
}

func (l *Lab) pods() clientv1.PodInterface { return l.Client.CoreV1().Pods(metav1.NamespaceDefault) }

// list returns all pods by name.
func (l *Lab) list(ctx context.Context) (map[string]*corev1.Pod, error) {
	list, err := l.pods().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}

// each waits until check returns no error for any of the pods.
func (l *Lab) each(ctx context.Context, names []string, check func(*corev1.Pod) error) error {
	return Poll(ctx, func(ctx context.Context) error {
		pods, err := l.list(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			pod, ok := pods[name]
			if !ok {
				return fmt.Errorf("no pod %s", name)
			}
			if err := check(pod); err != nil {
				return fmt.Errorf("pod %s: %w", name, err)
			}
		}
		return nil
	})
}

// complaints returns what the scheduler and the kubelet report as problems of a
// pod.
func complaints(pod *corev1.Pod) string {
	var text string
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil {
			text += ", " + waiting.Reason + " " + waiting.Message
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			text += ", " + condition.Message
		}
	}
	return text
}

// limit is how long Poll waits if the caller sets no limit: long enough for a
// small and busy machine.
const limit = 3 * time.Minute

// Poll calls check until it returns no error. When the time is up, the last
// error shows what was missing.
func Poll(ctx context.Context, check func(context.Context) error) error {
	within := limit
	if deadline, ok := ctx.Deadline(); ok {
		within = time.Until(deadline)
	}
	return poll.Until(ctx, 100*time.Millisecond, within, check)
}

// Names returns names of pods: NAME-1 to NAME-n.
func Names(name string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", name, i+1)
	}
	return all
}

// PerNode counts pods by their node.
func PerNode(nodes map[string]string) map[string]int {
	count := map[string]int{}
	for _, node := range nodes {
		count[node]++
	}
	return count
}

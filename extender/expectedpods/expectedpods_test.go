package expectedpods_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/extender/expectedpods"
	"github.com/layer-locality/layer-locality/imageref"
)

func TestTable(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	table := expectedpods.New(clock)
	add := func(name, node string) {
		table.Add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}, node)
	}
	on := map[string]string{}
	// settle returns what ended: "pod@node" for those that are placed, "pod" for the others.
	settle := func() (ended []string) {
		table.Settle(func(pod *v1.Pod) string { return on[pod.Name] },
			func(a *expectedpods.Pod, node string) { ended = append(ended, a.Pod.Name+"@"+node) },
			func(a *expectedpods.Pod) { ended = append(ended, a.Pod.Name) })
		slices.Sort(ended)
		return ended
	}
	add("a", "n1")
	clock.Step(expectedpods.Timeout - time.Second)
	add("b", "n2")
	add("c", "n2")
	if got := settle(); got != nil || table.Len() != 3 {
		t.Errorf("%v, %d are left", got, table.Len())
	}
	placed := map[string]string{}
	table.Each(func(a *expectedpods.Pod) { placed[a.Pod.Name] = a.Info.Pod.Spec.NodeName })
	if want := map[string]string{"a": "n1", "b": "n2", "c": "n2"}; !reflect.DeepEqual(placed, want) {
		t.Errorf("expected %v, want %v", placed, want)
	}
	on["b"] = "n3"
	if got := settle(); !slices.Equal(got, []string{"b@n3"}) || table.Len() != 2 {
		t.Errorf("b is placed: %v, %d are left", got, table.Len())
	}
	clock.Step(time.Second)
	if got := settle(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the time of a is over: %v", got)
	}
	if a := table.Take("c"); a == nil || a.Node != "n2" || table.Take("c") != nil || table.Len() != 0 {
		t.Errorf("c: %+v", a)
	}
	for range 3 { // the time begins again
		add("d", "n1")
		clock.Step(expectedpods.Timeout - 1)
	}
	if got := settle(); got != nil {
		t.Errorf("d: %v", got)
	}
}

// TestSlim compares a pod with what is kept of it: the same images and the same requests.
func TestSlim(t *testing.T) {
	t.Parallel()
	requests := func(cpu string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Gi")}}
	}
	environment := []v1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", 2*expectedpods.MaxPod)}}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1", Annotations: map[string]string{"large": environment[0].Value}},
		Spec: v1.PodSpec{
			SchedulerName: "another", NodeName: "n1",
			InitContainers: []v1.Container{
				{Name: "first", Image: "init", Resources: requests("3"), Env: environment},
				{Name: "stays", Image: "side", Resources: requests("1"), RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
			},
			Containers: []v1.Container{{Name: "main", Image: "app", ImagePullPolicy: v1.PullAlways, Resources: requests("2"), Command: []string{environment[0].Value}}},
			Volumes:    []v1.Volume{{Name: "data"}, {Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "volume"}}}},
			Overhead:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")},
		},
	}
	slim, ok := expectedpods.Slim(pod)
	if !ok || slim.Name != "p" || slim.Namespace != "default" || slim.UID != "1" || slim.Spec.NodeName != "n1" || slim.Spec.SchedulerName != "another" {
		t.Fatalf("%t %+v", ok, slim)
	}
	if got, want := imageref.OfPod(&slim.Spec), imageref.OfPod(&pod.Spec); len(want) != 4 || !reflect.DeepEqual(got, want) {
		t.Errorf("images %v, want %v", got, want)
	}
	options := resourcehelper.PodResourcesOptions{}
	if got, want := resourcehelper.PodRequests(slim, options), resourcehelper.PodRequests(pod, options); !reflect.DeepEqual(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	pod.Spec.Containers[0].Image = strings.Repeat("x", expectedpods.MaxPod)
	if _, ok := expectedpods.Slim(pod); ok {
		t.Error("a pod with an image name of 16 KiB is kept")
	}
}

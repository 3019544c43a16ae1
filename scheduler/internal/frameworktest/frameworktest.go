// Package frameworktest runs a plugin as kube-scheduler does. Only tests import it.
package frameworktest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// Args returns the arguments of a plugin with their defaults, after a change of the form
// that users write.
func Args[External, Internal runtime.Object](t testing.TB, external External, internal Internal, change func(External)) Internal {
	t.Helper()
	if change != nil {
		change(external)
	}
	scheme.Scheme.Default(external)
	if err := scheme.Scheme.Convert(external, internal, nil); err != nil {
		t.Fatal(err)
	}
	return internal
}

// Framework is a profile with one plugin, on a cluster that does not change.
type Framework struct {
	framework.Framework
	// Infos are the nodes, in the order in which they were given.
	Infos []fwk.NodeInfo
	ctx   context.Context
}

// New returns a Framework with the plugin at all of its extension points.
func New(t testing.TB, logger klog.Logger, name string, make frameworkruntime.PluginFactory, args runtime.Object, nodes []*v1.Node, pods ...*v1.Pod) *Framework {
	t.Helper()
	metrics.Register() // the framework wants them
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	t.Cleanup(cancel)
	var objects []runtime.Object
	for _, node := range nodes {
		objects = append(objects, node)
	}
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	snapshot := cache.NewSnapshot(pods, nodes)
	enabled := config.PluginSet{Enabled: []config.Plugin{{Name: queuesort.Name}, {Name: defaultbinder.Name}, {Name: name, Weight: 1}}}
	profile := &config.KubeSchedulerProfile{SchedulerName: "default-scheduler", Plugins: &config.Plugins{MultiPoint: enabled}}
	if args != nil {
		profile.PluginConfig = []config.PluginConfig{{Name: name, Args: args}}
	}
	f, err := frameworkruntime.NewFramework(ctx, frameworkruntime.Registry{queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New, name: make}, profile,
		frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithClientSet(client), frameworkruntime.WithSnapshotSharedLister(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	factory.Core().V1().Nodes().Informer()
	factory.Core().V1().Pods().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	all := &Framework{Framework: f, ctx: ctx}
	for _, node := range nodes {
		info, err := snapshot.NodeInfos().Get(node.Name)
		if err != nil {
			t.Fatal(err)
		}
		all.Infos = append(all.Infos, info)
	}
	return all
}

// Scores returns the scores of all nodes for a pod, in order.
func (f *Framework) Scores(t testing.TB, pod *v1.Pod) []int64 {
	t.Helper()
	state := framework.NewCycleState()
	if status := f.RunPreScorePlugins(f.ctx, state, pod, f.Infos); !status.IsSuccess() {
		t.Fatal(status)
	}
	all, status := f.RunScorePlugins(f.ctx, state, pod, f.Infos)
	if !status.IsSuccess() {
		t.Fatal(status)
	}
	scores := make([]int64, len(all))
	for i, node := range all {
		scores[i] = node.TotalScore
	}
	return scores
}

// Permutation checks that a plugin scores nodes from 0 to 100, and in another order the same
// but for a few points.
func Permutation(t *testing.T, name string, make frameworkruntime.PluginFactory, args runtime.Object, points int64, nodes []*v1.Node, pods ...*v1.Pod) {
	t.Helper()
	scores := func(nodes []*v1.Node) map[string]int64 {
		f, of := New(t, klog.Background(), name, make, args, nodes, pods...), map[string]int64{}
		for i, score := range f.Scores(t, Pod("p", "300m", "")) {
			of[nodes[i].Name] = score
			if score < fwk.MinScore || score > fwk.MaxScore {
				t.Errorf("%s: %d", nodes[i].Name, score)
			}
		}
		return of
	}
	shuffled := slices.Clone(nodes)
	rand.New(rand.NewPCG(9, 10)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	first, second := scores(nodes), scores(shuffled)
	for name, score := range first {
		if max(second[name]-score, score-second[name]) > points {
			t.Errorf("%s: %d, in another order %d", name, score, second[name])
		}
	}
}

// Filter returns the status of the filters for each node, in order.
func (f *Framework) Filter(t testing.TB, pod *v1.Pod) []*fwk.Status {
	t.Helper()
	state := framework.NewCycleState()
	if _, status, _ := f.RunPreFilterPlugins(f.ctx, state, pod); !status.IsSuccess() {
		t.Fatal(status)
	}
	var all []*fwk.Status
	for _, info := range f.Infos {
		all = append(all, f.RunFilterPlugins(f.ctx, state, pod, info))
	}
	return all
}

// Node returns a node with annotations, which can hold so much. Empty texts mean nothing.
func Node(name, cpu, memory string, annotations map[string]string) *v1.Node {
	capacity := v1.ResourceList{v1.ResourcePods: resource.MustParse("110")}
	for of, text := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
		if text != "" {
			capacity[of] = resource.MustParse(text)
		}
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: annotations},
		Status:     v1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
}

// Pod returns a pod with one container that requests so much. Empty texts request nothing.
func Pod(name, cpu, memory string) *v1.Pod {
	requests := v1.ResourceList{}
	for of, text := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
		if text != "" {
			requests[of] = resource.MustParse(text)
		}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: requests}}}},
	}
}

// On places a pod on a node.
func On(pod *v1.Pod, node string) *v1.Pod {
	pod.Spec.NodeName = node
	return pod
}

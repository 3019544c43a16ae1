package qosaware

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
	configv1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
	"github.com/layer-locality/layer-locality/scheduler/internal/frameworktest"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// onlyName is a plugin at no extension point.
type onlyName struct{}

func (onlyName) Name() string { return Name }

// BenchmarkRetry tries a pod that is urgent and fits nowhere on 5,000 full nodes with 10 pods each, none of which
// may be preempted for it, by the framework's own filter of resources: what one of those costs that are
// tried again every reconsiderEvery.
func BenchmarkRetry(b *testing.B) {
	const nodes, perNode = 5000, 10
	args := frameworktest.Args(b, &configv1.QosAwareArgs{}, &config.QosAwareArgs{}, func(a *configv1.QosAwareArgs) {
		a.MeasureFrom = ptr.To(config.MeasureFromBound)
	})
	known := ledger.New(ledger.Config{Args: args, Clock: clock.RealClock{}, Owners: func(string, metav1.OwnerReference) (ledger.Owner, bool) { return ledger.Owner{Replicas: 1}, true }})
	made := metav1.NewTime(time.Now().Add(-time.Minute)) // less than minimumRunningTime
	workload := func(name, node string) *v1.Pod {
		pod := frameworktest.Pod(name, "100m", "")
		pod.Namespace, pod.UID, pod.CreationTimestamp, pod.Annotations = "team", types.UID(name), made, map[string]string{ledger.AnnotationSLO: "0.5"}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
		if pod.Spec.NodeName = node; node != "" {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: made}}
		}
		_ = known.Observe(pod)
		return pod
	}
	var objects []*v1.Node
	var pods []*v1.Pod
	for n := range nodes {
		objects = append(objects, frameworktest.Node(fmt.Sprint("n", n), "1", "1Gi", nil))
		for i := range perNode {
			pods = append(pods, workload(fmt.Sprintf("w%d-%d", n, i), objects[n].Name))
		}
	}
	waiting := workload("waiting", "")
	var plugin *QosAware
	build := func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		upstream, err := newUpstream(ctx, handle)
		if err != nil {
			return nil, err
		}
		h := &host{ledger: known, handle: handle, rules: newRules(args), limit: &limit{most: 60}, args: args, keys: &keys{}, metrics: registerMetrics(known)}
		plugin = newPlugin(h, upstream, handle)
		return onlyName{}, nil
	}
	fit := func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		return noderesources.NewFit(ctx, &kubescheduler.NodeResourcesFitArgs{ScoringStrategy: &kubescheduler.ScoringStrategy{
			Type: kubescheduler.LeastAllocated, Resources: []kubescheduler.ResourceSpec{{Name: "cpu", Weight: 1}},
		}}, handle, feature.Features{})
	}
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	client := fake.NewClientset(waiting)
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.Core().V1().Pods().Informer()
	f, err := frameworkruntime.NewFramework(ctx, frameworkruntime.Registry{queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New, noderesources.Name: fit, Name: build},
		&kubescheduler.KubeSchedulerProfile{SchedulerName: "default-scheduler", Plugins: &kubescheduler.Plugins{MultiPoint: kubescheduler.PluginSet{Enabled: []kubescheduler.Plugin{
			{Name: queuesort.Name}, {Name: defaultbinder.Name}, {Name: noderesources.Name, Weight: 1}, {Name: Name},
		}}}},
		frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithClientSet(client), frameworkruntime.WithSnapshotSharedLister(cache.NewSnapshot(pods, objects)),
		frameworkruntime.WithPodNominator(queue.NewTestQueue(ctx, (&queuesort.PrioritySort{}).Less)))
	if err != nil {
		b.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	all, _ := f.SnapshotSharedLister().NodeInfos().List()
	var filter, preemption time.Duration
	for b.Loop() {
		begin := time.Now()
		state := framework.NewCycleState()
		if _, status, _ := f.RunPreFilterPlugins(ctx, state, waiting); !status.IsSuccess() {
			b.Fatal(status)
		}
		statuses := framework.NewDefaultNodeToStatus()
		for _, node := range all {
			statuses.Set(node.Node().Name, f.RunFilterPluginsWithNominatedPods(ctx, state, waiting, node))
		}
		filtered := time.Now()
		if _, status := plugin.PostFilter(ctx, state, waiting, statuses); !strings.Contains(status.Message(), "may be preempted") {
			b.Fatal(status)
		}
		filter, preemption = filter+filtered.Sub(begin), preemption+time.Since(filtered)
	}
	b.ReportMetric(filter.Seconds()*1000/float64(b.N), "ms/filter")
	b.ReportMetric(preemption.Seconds()*1000/float64(b.N), "ms/preemption")
}

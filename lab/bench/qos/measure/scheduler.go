package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/qosaware"
	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// scheduler is what sorts the queue of a kube-scheduler, with the pods that its informer has.
type scheduler struct {
	ctx  context.Context
	stop context.CancelFunc
	less fwk.LessFunc
	pods []*v1.Pod
}

// profile sorts with one plugin.
const profile = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: DefaultBinder}, {name: %s}]
      disabled: [{name: "*"}]
`

// start makes a scheduler with a plugin and so many waiting pods, and returns when the plugin
// has all of them.
func start(ctx context.Context, plugin string, pods, workloads int, slo string) (_ *scheduler, err error) {
	ctx, stop := context.WithCancel(ctx)
	s := &scheduler{ctx: ctx, stop: stop}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	client := fake.NewClientset()
	answer(client, pods, workloads, slo)
	factory := informers.NewSharedInformerFactory(client, 0)
	// Those that a kube-scheduler has anyway.
	lister := factory.Core().V1().Pods().Lister()
	factory.Apps().V1().ReplicaSets().Informer()
	factory.Apps().V1().StatefulSets().Informer()
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(fmt.Appendf(nil, profile, plugin), nil, nil)
	if err != nil {
		return nil, err
	}
	promises := qosaware.NewFactory()
	made, err := frameworkruntime.NewFramework(ctx,
		frameworkruntime.Registry{queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New, qosaware.Name: promises.New},
		&object.(*kubescheduler.KubeSchedulerConfiguration).Profiles[0],
		frameworkruntime.WithInformerFactory(factory), frameworkruntime.WithClientSet(client),
		frameworkruntime.WithSnapshotSharedLister(schedulercache.NewEmptySnapshot()), frameworkruntime.WithPodActivator(nobody{}))
	if err != nil {
		return nil, err
	}
	s.less = made.QueueSortFunc()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	if s.pods, err = lister.List(labels.Everything()); err != nil {
		return nil, err
	}
	if len(s.pods) != pods {
		return nil, fmt.Errorf("the informer has %d of %d pods", len(s.pods), pods)
	}
	if plugin == qosaware.Name {
		return s, known(ctx, promises, workloads, slo)
	}
	return s, nil
}

// known waits until the plugin has all workloads.
func known(ctx context.Context, promises *qosaware.Factory, workloads int, slo string) error {
	const patience, complete = time.Minute, 500 * time.Millisecond
	if slo == "" {
		workloads = 0
	}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		table := httptest.NewRecorder()
		promises.DebugHandler().ServeHTTP(table, httptest.NewRequestWithContext(ctx, http.MethodGet, qosaware.DebugPath, nil))
		rows := bytes.Count(table.Body.Bytes(), []byte("\n")) - 1
		if rows == workloads {
			break
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("the plugin has %d of %d workloads: %s", rows, workloads, strings.TrimSpace(table.Body.String()))
		}
	}
	// It looks every 100 ms whether its informers have all pods: only then does it remember
	// their places in the queue.
	time.Sleep(complete)
	return nil
}

// nobody activates no pods: whose turn it is does not matter here.
type nobody struct{}

// Activate implements fwk.PodActivator.
func (nobody) Activate(klog.Logger, map[string]*v1.Pod) {}

// answer has a client answer lists with pods, and with the Deployments and ReplicaSets that
// have them.
func answer(client *fake.Clientset, pods, workloads int, slo string) {
	owner := func(kind string, i int) []metav1.OwnerReference {
		name := fmt.Sprintf("workload-%d", i)
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(kind + name), Controller: ptr.To(true)}}
	}
	meta := func(kind string, i int) metav1.ObjectMeta {
		own := owner(kind, i)[0]
		return metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: own.Name, UID: own.UID}
	}
	list := func(resource string, made func() kruntime.Object) {
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, kruntime.Object, error) { return true, made(), nil })
	}
	list("deployments", func() kruntime.Object {
		all := &appsv1.DeploymentList{}
		for i := range workloads {
			all.Items = append(all.Items, appsv1.Deployment{ObjectMeta: meta("Deployment", i)})
		}
		return all
	})
	list("replicasets", func() kruntime.Object {
		all := &appsv1.ReplicaSetList{}
		for i := range workloads {
			set := appsv1.ReplicaSet{ObjectMeta: meta("ReplicaSet", i)}
			set.OwnerReferences = owner("Deployment", i)
			all.Items = append(all.Items, set)
		}
		return all
	})
	list("pods", func() kruntime.Object {
		all, now := &v1.PodList{}, metav1.Now()
		for i := range pods {
			pod := v1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprintf("pod-%d", i)),
				CreationTimestamp: now, OwnerReferences: owner("ReplicaSet", i%workloads),
			}}
			pod.Spec.SchedulerName, pod.Status.Phase = v1.DefaultSchedulerName, v1.PodPending
			if slo != "" {
				pod.Annotations = map[string]string{ledger.AnnotationSLO: slo}
			}
			all.Items = append(all.Items, pod)
		}
		return all
	})
}

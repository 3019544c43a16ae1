package qosaware

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/qosaware/ledger"
)

// owners looks up what has pods. ReplicaSets and StatefulSets are upstream's informers.
// Deployments and Jobs have a factory of their own: kube-scheduler waits for all informers of
// the shared one before it places a pod, and would wait for ever without the right to these.
type owners struct {
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
	deployments  appslisters.DeploymentLister
	jobs         batchlisters.JobLister
	factory      informers.SharedInformerFactory
	informers    []cache.SharedIndexInformer
}

// newOwners returns the lookup.
func newOwners(handle fwk.Handle) *owners {
	shared := handle.SharedInformerFactory().Apps().V1()
	factory := informers.NewSharedInformerFactoryWithOptions(handle.ClientSet(), 0, informers.WithTransform(strip))
	deployments, jobs := factory.Apps().V1().Deployments(), factory.Batch().V1().Jobs()
	return &owners{
		replicaSets: shared.ReplicaSets().Lister(), statefulSets: shared.StatefulSets().Lister(),
		deployments: deployments.Lister(), jobs: jobs.Lister(), factory: factory,
		informers: []cache.SharedIndexInformer{
			shared.ReplicaSets().Informer(), shared.StatefulSets().Informer(), deployments.Informer(), jobs.Informer(),
		},
	}
}

// start begins to follow Deployments and Jobs, and calls added with every owner that appears.
// It returns what reports whether those that exist are known.
func (o *owners) start(ctx context.Context, added func(types.UID)) (synced []cache.InformerSynced, err error) {
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if meta, ok := object.(metav1.Object); ok {
			added(meta.GetUID())
		}
	}}
	for _, informer := range o.informers {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, registration.HasSynced)
	}
	o.factory.Start(ctx.Done())
	return synced, nil
}

// strip drops what is not needed of an object, which is most of it.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &appsv1.Deployment{ObjectMeta: stripMeta(&o.ObjectMeta), Spec: appsv1.DeploymentSpec{Replicas: o.Spec.Replicas}}, nil
	case *batchv1.Job:
		return &batchv1.Job{
			ObjectMeta: stripMeta(&o.ObjectMeta),
			Spec:       batchv1.JobSpec{Parallelism: o.Spec.Parallelism, Completions: o.Spec.Completions},
			Status:     batchv1.JobStatus{Active: o.Status.Active, Succeeded: o.Status.Succeeded},
		}, nil
	default:
		return object, nil
	}
}

func stripMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, OwnerReferences: m.OwnerReferences}
}

// get looks up an owner. Objects of other kinds have no known owners.
func (o *owners) get(namespace string, reference metav1.OwnerReference) (ledger.Owner, bool) {
	switch reference.Kind {
	case "ReplicaSet":
		object, err := o.replicaSets.ReplicaSets(namespace).Get(reference.Name)
		return owner(object, err, reference.UID, func() *int32 { return object.Spec.Replicas })
	case "StatefulSet":
		object, err := o.statefulSets.StatefulSets(namespace).Get(reference.Name)
		return owner(object, err, reference.UID, func() *int32 { return object.Spec.Replicas })
	case "Deployment":
		object, err := o.deployments.Deployments(namespace).Get(reference.Name)
		return owner(object, err, reference.UID, func() *int32 { return object.Spec.Replicas })
	case "Job":
		object, err := o.jobs.Jobs(namespace).Get(reference.Name)
		return owner(object, err, reference.UID, func() *int32 { return ptr.To(together(object)) })
	default:
		return ledger.Owner{}, true
	}
}

// together returns how many pods of a Job run at once from now on: no more than still have to succeed. A Job without
// completions makes no new ones once one has succeeded.
func together(job *batchv1.Job) int32 {
	left := ptr.Deref(job.Spec.Parallelism, 1)
	switch {
	case job.Spec.Completions != nil:
		left = min(left, *job.Spec.Completions-job.Status.Succeeded)
	case job.Status.Succeeded > 0:
		left = min(left, job.Status.Active)
	}
	return max(0, left)
}

// owner returns what is known of an object, if it is the one that is meant and not another
// one of its name.
func owner(object metav1.Object, err error, uid types.UID, replicas func() *int32) (ledger.Owner, bool) {
	if err != nil || object.GetUID() != uid {
		return ledger.Owner{}, false
	}
	return ledger.Owner{Owner: metav1.GetControllerOfNoCopy(object), Replicas: int(ptr.Deref(replicas(), 1))}, true
}

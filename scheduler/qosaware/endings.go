package qosaware

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	// maxAsked is how often the API server is asked how a pod ended.
	maxAsked = 3
	// maxEnded is of how many pods it is waited for an answer. The work of others counts as
	// lost.
	maxEnded = 10_000
)

// endedPod is a pod that the informer does not have any more.
type endedPod struct {
	namespace, name string
	uid             types.UID
}

// endings finds out how pods ended: the scheduler's informer leaves finished pods out, so that
// success looks like deletion.
type endings struct {
	client clientset.Interface
	// finish is called with how a pod ended.
	finish func(pod types.UID, succeeded bool)
	queue  workqueue.TypedRateLimitingInterface[endedPod]

	mu sync.Mutex
	// open are the pods of which it is waited for an answer, also those that wait for their
	// next try, which the queue does not count.
	open map[endedPod]struct{}
}

func newEndings(client clientset.Interface, finish func(types.UID, bool)) *endings {
	return &endings{
		client: client, finish: finish, open: map[endedPod]struct{}{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[endedPod]()),
	}
}

// add has it found out how a pod ended. It returns false if it is waited for too many answers.
func (e *endings) add(pod endedPod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, again := e.open[pod]; !again && len(e.open) >= maxEnded {
		return false
	}
	e.open[pod] = struct{}{}
	e.queue.Add(pod)
	return true
}

// close ends the wait for an answer.
func (e *endings) close(pod endedPod, succeeded bool) {
	e.queue.Forget(pod)
	e.mu.Lock()
	delete(e.open, pod)
	e.mu.Unlock()
	e.finish(pod.uid, succeeded)
}

// run asks for one pod after the other, until the context is done.
func (e *endings) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, e.queue.ShutDown)
	defer stop()
	for {
		pod, shutdown := e.queue.Get()
		if shutdown {
			return
		}
		succeeded, err := e.succeeded(ctx, pod)
		if err != nil && e.queue.NumRequeues(pod) < maxAsked {
			e.queue.AddRateLimited(pod)
		} else {
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot find out whether a pod succeeded: its work counts as lost", "plugin", Name, "pod", klog.KRef(pod.namespace, pod.name))
			}
			e.close(pod, succeeded)
		}
		e.queue.Done(pod)
	}
}

// succeeded reports whether a pod that the informer does not have any more succeeded.
func (e *endings) succeeded(ctx context.Context, p endedPod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	pod, err := e.client.CoreV1().Pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return pod.UID == p.uid && pod.Status.Phase == v1.PodSucceeded, nil
}

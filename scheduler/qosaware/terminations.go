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

// terminatedPod is a pod that the informer does not have any more.
type terminatedPod struct {
	namespace, name string
	uid             types.UID
}

// terminations finds out how pods ended: the scheduler's informer leaves finished pods out, so that
// success looks like deletion.
type terminations struct {
	client clientset.Interface
	// finish is called with how a pod ended.
	finish func(pod types.UID, succeeded bool)
	queue  workqueue.TypedRateLimitingInterface[terminatedPod]

	mu sync.Mutex
	// open are the pods of which it is waited for an answer, also those that wait for their
	// next try, which the queue does not count.
	open map[terminatedPod]struct{}
}

func newTerminations(client clientset.Interface, finish func(types.UID, bool)) *terminations {
	return &terminations{
		client: client, finish: finish, open: map[terminatedPod]struct{}{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[terminatedPod]()),
	}
}

// add has it found out how a pod ended. It returns false if it is waited for too many answers.
func (t *terminations) add(pod terminatedPod) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.open[pod]; !again && len(t.open) >= maxEnded {
		return false
	}
	t.open[pod] = struct{}{}
	t.queue.Add(pod)
	return true
}

// close ends the wait for an answer.
func (t *terminations) close(pod terminatedPod, succeeded bool) {
	t.queue.Forget(pod)
	t.mu.Lock()
	delete(t.open, pod)
	t.mu.Unlock()
	t.finish(pod.uid, succeeded)
}

// run asks for one pod after the other, until the context is done.
func (t *terminations) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, t.queue.ShutDown)
	defer stop()
	for {
		pod, shutdown := t.queue.Get()
		if shutdown {
			return
		}
		succeeded, err := t.succeeded(ctx, pod)
		if err != nil && t.queue.NumRequeues(pod) < maxAsked {
			t.queue.AddRateLimited(pod)
		} else {
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot find out whether a pod succeeded: its work counts as lost", "plugin", Name, "pod", klog.KRef(pod.namespace, pod.name))
			}
			t.close(pod, succeeded)
		}
		t.queue.Done(pod)
	}
}

// succeeded reports whether a pod that the informer does not have any more succeeded.
func (t *terminations) succeeded(ctx context.Context, p terminatedPod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	pod, err := t.client.CoreV1().Pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return pod.UID == p.uid && pod.Status.Phase == v1.PodSucceeded, nil
}

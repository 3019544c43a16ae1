package prefetch

import (
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

// turns is the order of a workqueue in which namespaces take turns: one with thousands of objects delays each other one
// by a single object.
type turns struct {
	// waiting has the requests of each namespace, namespaces those that have some, in the order of their turns.
	waiting    map[string][]ctrl.Request
	namespaces []string
	length     int
}

var _ workqueue.Queue[ctrl.Request] = (*turns)(nil)

// newQueue returns the queue of a controller.
func newQueue(name string, limiter workqueue.TypedRateLimiter[ctrl.Request]) workqueue.TypedRateLimitingInterface[ctrl.Request] {
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[ctrl.Request]{Name: name, Queue: &turns{waiting: map[string][]ctrl.Request{}}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[ctrl.Request]{
		Name:          name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[ctrl.Request]{Name: name, Queue: queue}),
	})
}

// Touch implements workqueue.Queue.
func (q *turns) Touch(ctrl.Request) {}

// Len implements workqueue.Queue.
func (q *turns) Len() int { return q.length }

// Push implements workqueue.Queue.
func (q *turns) Push(request ctrl.Request) {
	if len(q.waiting[request.Namespace]) == 0 {
		q.namespaces = append(q.namespaces, request.Namespace)
	}
	q.waiting[request.Namespace] = append(q.waiting[request.Namespace], request)
	q.length++
}

// Pop implements workqueue.Queue. The queue is not empty.
func (q *turns) Pop() ctrl.Request {
	namespace := q.namespaces[0]
	requests := q.waiting[namespace]
	q.namespaces = q.namespaces[1:]
	if q.waiting[namespace] = requests[1:]; len(requests) > 1 {
		q.namespaces = append(q.namespaces, namespace)
	} else {
		delete(q.waiting, namespace)
	}
	q.length--
	return requests[0]
}

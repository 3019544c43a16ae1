package prefetch

import "k8s.io/client-go/util/workqueue"

// turns is the order of a workqueue in which namespaces take turns: one with thousands of objects delays each other one
// by a single object.
type turns[T comparable] struct {
	namespaceOf func(T) string
	// waiting has the requests of each namespace, namespaces those that have some, in the order of their turns.
	waiting    map[string][]T
	namespaces []string
	length     int
}

// inTurns returns what makes the queue of a controller.
func inTurns[T comparable](namespaceOf func(T) string) func(string, workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimitingInterface[T] {
	return func(name string, limiter workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimitingInterface[T] {
		order := &turns[T]{namespaceOf: namespaceOf, waiting: map[string][]T{}}
		queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Name: name, Queue: order})
		return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[T]{
			Name:          name,
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{Name: name, Queue: queue}),
		})
	}
}

// Touch implements workqueue.Queue.
func (q *turns[T]) Touch(T) {}

// Len implements workqueue.Queue.
func (q *turns[T]) Len() int { return q.length }

// Push implements workqueue.Queue.
func (q *turns[T]) Push(request T) {
	namespace := q.namespaceOf(request)
	if len(q.waiting[namespace]) == 0 {
		q.namespaces = append(q.namespaces, namespace)
	}
	q.waiting[namespace] = append(q.waiting[namespace], request)
	q.length++
}

// Pop implements workqueue.Queue. The queue is not empty.
func (q *turns[T]) Pop() T {
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

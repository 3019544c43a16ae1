//go:build !kubernetes1.35

package qosaware

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
)

type eventRecorder = events.EventRecorderLogger

// addTo puts a pod into a queue.
func addTo(ctx context.Context, q queue.SchedulingQueue, pod *v1.Pod) { q.Add(ctx, pod) }

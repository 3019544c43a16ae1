package locality

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Events gives tests the handlers of nodes and pods, for events one after another.
func (t *Tracker) Events(ctx context.Context) (nodes, pods cache.ResourceEventHandler) {
	registration, err := t.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	if err != nil {
		panic(err)
	}
	return t.nodeHandler(klog.FromContext(ctx)), t.podHandler(ctx, registration)
}

// Stores returns the stores of the informers.
func (t *Tracker) Stores() (nodes, pods cache.Store) { return t.nodes.GetStore(), t.pods.GetStore() }

// ChangedImages counts the pods of which an image was changed in place and is not there yet.
func (t *Tracker) ChangedImages() int {
	t.changed.mu.Lock()
	defer t.changed.mu.Unlock()
	return len(t.changed.statuses)
}

// NodesWithRest is how many nodes something is remembered about besides what they list.
func (t *Tracker) NodesWithRest() int { return len(t.unlisted.nodes) }

// SetUnlistedTimeout changes the argument.
func (t *Tracker) SetUnlistedTimeout(d time.Duration) { t.first.Args.UnlistedTimeout.Duration = d }

// ProfileOf returns the profile of a pod.
func (t *Tracker) ProfileOf(pod *v1.Pod) *Profile { return t.profileOf(pod) }

package controller

import (
	"context"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

const (
	// nodeImageRefusal is for how long a refusal counts, at least: an image may be gone
	// from its registry and stay on nodes for ever.
	nodeImageRefusal = 6 * time.Hour
	// nodeImagePause is for how long none is asked for after their registry had enough.
	nodeImagePause = time.Hour
	// nodeImageAttempts is how often an image is asked for while its registry does not answer.
	// After that the next one has its turn: it may be this image only that makes the
	// registry fail.
	nodeImageAttempts = 5
)

// countRequests returns work for queues, which counts requests to registries.
func countRequests(work func(context.Context, *queue.Queue, string)) queue.Work {
	return func(ctx context.Context, queue *queue.Queue, key string) int {
		ctx, requests := registry.CountRequests(ctx)
		work(ctx, queue, key)
		return int(requests.Load())
	}
}

// ask queues an image for when something is due about it. Images that were not asked for yet go
// first: what the next leader finds refused can wait for them.
func (r *Resolver) ask(image usage.Image) {
	level := queue.Resolving
	if r.attempts.of(image).Reason != "" {
		level = queue.Confirming
	}
	r.askAt(level, image)
}

// askAt queues an image for when something is due about it, and not at all if nothing will be: an image that is
// known takes no turn from those that are not, however often it is named. The level is that of an image of which
// nothing is known.
func (r *Resolver) askAt(level queue.Level, image usage.Image) {
	next := due(r.snapshot(image))
	if next.known != nil {
		level = queue.Confirming
	}
	if next.after >= 0 {
		r.enqueue(image, next.after, level)
	}
}

// askForNew asks for images that nothing used before, or not with the pull secrets
// of this workload.
func (r *Resolver) askForNew(c usage.WorkloadImages, added []usage.Image) {
	for _, image := range added {
		// The workload's pull secrets may give access where the others did not.
		if r.asker.Credentials.Enabled() {
			r.asker.Brought(image.Key, c.Pull)
			if r.attempts.allowRetry(image, v1alpha1.ReasonUnauthorized, v1alpha1.ReasonNotFound) {
				r.attempts.addPendingNotice(image.Key, c.Pull.Namespace)
			}
		}
		r.ask(image)
	}
}

// add is the one place where images come into the queues, after some time.
func (r *Resolver) add(image usage.Image, after time.Duration, level queue.Level) {
	r.queues.Add(image.Registry(), image.Key, r.usage.Namespaces(image.Key), after, level)
}

// enqueue asks for an image after some time. One that only nodes hold is added with the
// lowest level, and when its turn comes.
func (r *Resolver) enqueue(image usage.Image, after time.Duration, level queue.Level) {
	switch {
	case !r.usage.OnlyOnNodes(image.Key):
		r.add(image, after, level)
	case after > 0:
		switch last := r.attempts.of(image); {
		case last.Reason == v1alpha1.ReasonRateLimited || last.gaveUp():
			after = max(after, nodeImagePause)
		case last.Reason != "" && !lookup.Temporary(last.Reason):
			after = max(after, nodeImageRefusal)
		}
		r.add(image, after, queue.Spare)
	default:
		r.handOver(r.nodeImages.Want(image))
	}
}

// handOver adds images that only nodes hold, whose turn it is.
func (r *Resolver) handOver(images []usage.Image) {
	for _, image := range images {
		r.add(image, 0, queue.Spare)
	}
}

// worked makes room for the next image that only nodes hold, after one was worked on. One
// whose registry does not answer keeps its place for a while: there is no point in asking
// for more.
func (r *Resolver) worked(image usage.Image) {
	if last := r.attempts.of(image); r.usage.InUse(image.Key) && lookup.Temporary(last.Reason) && !last.gaveUp() {
		return
	}
	r.handOver(r.nodeImages.Done(image))
	// There may be more to do since it began, which was not noted while it had its turn.
	if r.usage.OnlyOnNodes(image.Key) && due(r.snapshot(image)).task != nothing {
		r.ask(image)
	}
}

// gaveUp reports whether a registry failed so often on an image that others have their turn.
// A registry that had enough has refused no image.
func (a *attempt) gaveUp() bool {
	return a.Reason == v1alpha1.ReasonUnavailable && a.Failures >= nodeImageAttempts
}

// release drops what is remembered about images that nothing uses any longer, but not
// since when that is if there is an object to remove.
func (r *Resolver) release(keys ...string) {
	r.forget(keys...)
	for _, key := range keys {
		r.queues.Remove(usage.ImageOf(key).Registry(), key)
	}
	for _, key := range keys {
		r.handOver(r.nodeImages.Done(usage.ImageOf(key))) // it no longer waits
		for _, reference := range usage.ImageOf(key).References {
			if !r.store.Has(reference) {
				r.usage.ForgetIdle(reference)
			}
		}
		// It may have come into use again meanwhile, and what was queued for that is gone.
		if r.leading.Load() && r.usage.InUse(key) {
			r.ask(usage.ImageOf(key))
		}
	}
	for _, admitted := range r.usage.Admit() {
		if r.leading.Load() {
			r.askForNew(admitted.Images, []usage.Image{admitted.Image})
		}
	}
}

// forget drops what is remembered about images between two attempts.
func (r *Resolver) forget(keys ...string) {
	r.attempts.forget(keys...)
	r.asker.Forget(keys...)
	r.backlog.forget(keys...)
}

// askAgain asks at once for references of which objects say nothing any longer.
func (r *Resolver) askAgain(evicted []string) {
	for _, image := range r.usage.Meaning(evicted) {
		r.forget(image.Key)
		r.enqueue(image, 0, queue.Resolving)
	}
}

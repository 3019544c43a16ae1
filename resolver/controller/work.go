package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// task is what has to be done about an image.
type task int

const (
	nothing task = iota
	// adopt adds a digest to the objects that have its content already.
	adopt
	// confirm asks whether a tag still points to the same digest.
	confirm
	// resolve asks for the layers of an image.
	resolve
)

// todo is what has to be done about an image, and when.
type todo struct {
	image image
	task  task
	// reference of the image that is known; empty if none is.
	reference string
	// known is what is known about the reference; nil if nothing is.
	known *answer
	// after is how long there is nothing to do; negative means for ever. It is 0
	// for any other task.
	after time.Duration
}

// due returns what has to be done about an image now, or how long there is nothing
// to do.
func (r *Resolver) due(image image) todo {
	now := r.clock.Now()
	wait := r.attempts.of(image).retry.Sub(now)
	for _, reference := range image.references {
		known := r.store.lookup(reference)
		if known == nil {
			continue
		}
		t := todo{image: image, reference: reference, known: known}
		switch {
		case !known.covers(r.nodes.clusterPlatforms()):
			t.task = resolve
		case digestOf(reference) == "":
			t.task = confirm
			// At most the TTL, in case the clock of the process that confirmed it was
			// ahead.
			wait = max(wait, min(known.confirmed.Add(r.options.TagTTL).Sub(now), r.options.TagTTL))
		case len(r.store.holders(reference)) == 0:
			t.task = adopt
			return t
		default: // a digest means the same for ever
			t.after = -1
			return t
		}
		return t.notBefore(wait)
	}
	return todo{image: image, task: resolve}.notBefore(wait)
}

// notBefore returns what there is to do if it has to wait that long: nothing yet.
func (t todo) notBefore(wait time.Duration) todo {
	if wait > 0 {
		t.task, t.after = nothing, wait
	}
	return t
}

// ask queues an image to be worked on now. Images of which nothing is known go
// first.
func (r *Resolver) ask(image image) {
	priority := resolving
	if r.due(image).known != nil {
		priority = confirming
	}
	r.queues.add(image, 0, priority)
}

// work does what is due about an image, and queues it again for when the next thing
// is due.
func (r *Resolver) work(ctx context.Context, queue *queue, key string) {
	if !r.usage.inUse(key) {
		return
	}
	defer r.forgetUnused(key)
	image, log := imageOf(key), r.log.WithValues("image", key)

	next := r.due(image)
	if next.task != nothing {
		err := r.do(ctx, log, queue, next)
		if ctx.Err() != nil {
			return // the next leader does it
		}
		if err != nil {
			log.Error(err, "Writing what is known about an image")
			r.metrics.writeErrors.Inc()
			// There is no point in asking this registry for more meanwhile.
			pause := r.backlog.failed()
			queue.pause(pause)
			r.queues.add(image, pause, resolving)
			return
		}
		r.backlog.succeeded()
		next = r.due(image)
	}
	if next.after >= 0 {
		r.queues.add(image, next.after, confirming)
	}
}

// forgetUnused drops what was noted about an image after the handler that saw the
// end of its use.
func (r *Resolver) forgetUnused(key string) {
	if !r.usage.inUse(key) {
		r.forget(key)
	}
}

// do does a task and writes the outcome. A refusal by a registry is an outcome
// too. Errors are those of the API server, or of the context.
func (r *Resolver) do(ctx context.Context, log logr.Logger, queue *queue, t todo) error {
	switch t.task {
	case adopt:
		return r.saved(r.store.adopt(ctx, t.reference))
	case confirm:
		return r.confirm(ctx, log, queue, t)
	case resolve:
		return r.resolve(ctx, log, queue, t)
	}
	return nil
}

// confirm asks whether a tag still points to the same digest.
func (r *Resolver) confirm(ctx context.Context, log logr.Logger, queue *queue, t todo) error {
	before := r.attempts.of(t.image)
	keychains, problems := r.credentials.keychains(ctx, r.usage.pulls(t.image.key, maxPulls))
	digest, err := r.options.Registry.Digest(ctx, t.reference, keychains)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		failure := r.noteFailure(queue, t.image, before, []refusal{{t.reference, err}}, problems)
		r.metrics.lookups.WithLabelValues("confirm", failure.reason).Inc()
		log.V(1).Info("Tag not confirmed", "reference", t.reference, "reason", failure.reason, "message", failure.message, "retry", failure.retry)
		return r.saved(r.store.notConfirmed(ctx, t.reference, failure))
	}
	queue.succeeded()
	r.metrics.lookups.WithLabelValues("confirm", v1alpha1.ReasonResolved).Inc()
	if digest != t.known.digest {
		log.Info("Tag moved", "reference", t.reference, "from", t.known.digest, "to", digest)
		return r.resolve(ctx, log, queue, t)
	}
	if err := r.saved(r.store.confirmed(ctx, t.reference, digest)); err != nil {
		return err
	}
	r.forget(t.image.key)
	return nil
}

// resolve asks for the layers of an image: under the known reference, or else
// under all references that it may mean, until one is found, as a container
// runtime does.
func (r *Resolver) resolve(ctx context.Context, log logr.Logger, queue *queue, t todo) error {
	platforms := r.nodes.clusterPlatforms()
	if answer := r.backlog.of(t.image); answer != nil && slices.Equal(answer.platforms, platforms) {
		return r.write(ctx, t.image, answer)
	}
	before := r.attempts.of(t.image)
	keychains, problems := r.credentials.keychains(ctx, r.usage.pulls(t.image.key, maxPulls))
	references := t.image.references
	if t.known != nil {
		references = []string{t.reference}
	}
	var refusals []refusal
	for _, reference := range references {
		found, err := r.options.Registry.Resolve(ctx, reference, platforms, keychains)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			refusals = append(refusals, refusal{reference, err})
			continue
		}
		queue.succeeded()
		r.metrics.lookups.WithLabelValues("resolve", v1alpha1.ReasonResolved).Inc()
		log.V(1).Info("Resolved", "reference", reference, "digest", found.Digest, "manifests", len(found.Manifests))
		return r.write(ctx, t.image, &learned{reference: reference, found: found, platforms: platforms})
	}

	failure := r.noteFailure(queue, t.image, before, refusals, problems)
	r.metrics.lookups.WithLabelValues("resolve", failure.reason).Inc()
	if t.known != nil { // keep what is known: other content of a tag, or not all platforms
		log.V(1).Info("Not resolved again", "reference", t.reference, "reason", failure.reason, "message", failure.message, "retry", failure.retry)
		return r.saved(r.store.notConfirmed(ctx, t.reference, failure))
	}
	if before.reason != failure.reason {
		log.Info("Not resolved", "reason", failure.reason, "message", failure.message, "retry", failure.retry)
		r.notifier.reportFailure(t.image, failure, r.usage.workloads(t.image.key, maxEvents)...)
	}
	return r.saved(r.store.notResolved(ctx, t.image.references[0], failure))
}

// write writes what was learned about an image. If that fails it is kept, so that
// the registry has to answer only once.
func (r *Resolver) write(ctx context.Context, image image, answer *learned) error {
	err := r.saved(r.store.resolved(ctx, answer.reference, answer.found, answer.platforms))
	if first := image.references[0]; err == nil && first != answer.reference { // the first reference, which failed before
		err = r.saved(r.store.removeUnresolved(ctx, first))
	}
	if err != nil {
		r.backlog.keep(image, answer)
		return err
	}
	r.forget(image.key)
	return nil
}

// maxMessage bounds messages in conditions and events (bytes).
const maxMessage = 1000

// refusal is the error that the registry of a reference answered with.
type refusal struct {
	reference string
	err       error
}

// noteFailure notes why no registry answered for an image, for the queue and
// for the next attempt. before is the last attempt as it was remembered when
// this one began. problems are those of the credentials.
func (r *Resolver) noteFailure(queue *queue, image image, before attempt, refusals []refusal, problems []string) attempt {
	var reason string
	var messages []string
	var wait time.Duration // that the registries ask for
	for _, refusal := range refusals {
		messages = append(messages, refusal.err.Error())
		e := &registry.Error{Reason: v1alpha1.ReasonUnavailable}
		errors.As(refusal.err, &e)
		wait = max(wait, e.RetryAfter)
		// A temporary failure takes precedence over a final one: the image may exist.
		if reason == "" || temporary(e.Reason) && !temporary(reason) {
			reason = e.Reason
		}
		switch {
		case imageOf(refusal.reference).registry() != image.registry(): // not the queue's registry
		case temporary(e.Reason):
			wait = max(wait, queue.failed(e.RetryAfter))
		case e.Reason != v1alpha1.ReasonDenied: // a denied request never reached the registry
			queue.succeeded()
		}
	}
	if reason == v1alpha1.ReasonUnauthorized {
		messages = append(messages, problems...)
		if !r.credentials.readsPullSecrets() {
			messages = append(messages, "pull secrets of workloads are not read (--pull-secrets)")
		}
	}
	return r.attempts.failed(image, before, reason, atMost(maxMessage, strings.Join(messages, "; ")), wait)
}

// atMost returns the beginning of a text, at most that many bytes.
func atMost(bytes int, text string) string {
	if len(text) > bytes {
		return strings.ToValidUTF8(text[:bytes], "")
	}
	return text
}

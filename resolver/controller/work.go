package controller

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// work does what is due about an image, and queues it again for when the next thing
// is due. The functions below are in the order in which it calls them: lookUp asks
// registries and writes nothing; write and what follows it write what they answered.
func (r *Resolver) work(ctx context.Context, q *queue.Queue, key string) {
	image, log := usage.ImageOf(key), r.log.WithValues("image", key)
	defer r.worked(image)
	if !r.usage.InUse(key) {
		return
	}
	defer r.forgetUnused(key)
	r.metrics.looked.Inc()

	next := due(r.snapshot(image))
	found := r.lookUp(ctx, log, q, next)
	err := r.write(ctx, log, q, next, found)
	switch {
	case ctx.Err() != nil: // the next leader does it
	case err != nil && !store.Refused(err):
		r.notWritten(log, q, image, err)
	default:
		if next.task != nothing {
			r.backlog.succeeded() // the API server works
		}
		if err != nil {
			r.notAccepted(ctx, log, image, err)
		}
		r.askAt(queue.Confirming, image)
	}
}

// outcome is what registries answered about an image. If it has neither something new nor
// refusals, what is known is confirmed.
type outcome struct {
	// before is the last attempt before this one, and question how this one is counted.
	before   attempt
	question string
	learned  *lookup.Answer
	refusals lookup.Refusals
}

// lookUp asks registries what is due: whether a tag still points to the same digest, and for
// the layers if it does not, or if these are not known for all platforms.
func (r *Resolver) lookUp(ctx context.Context, log logr.Logger, queue *queue.Queue, t todo) outcome {
	found := outcome{before: t.last, question: "confirm"}
	changed := t.task == resolve
	if t.task == confirm {
		digest, err := r.asker.Digest(ctx, t.image, t.reference, t.known.Private)
		if err != nil {
			found.refusals = lookup.Refusals{{Reference: t.reference, Err: err}}
		} else {
			r.answered(queue, found.question)
		}
		if changed = err == nil && digest != t.known.Digest; changed {
			r.logOf(log, t.image).Info("Tag moved", "reference", t.reference, "from", t.known.Digest, "to", digest)
			found.before = r.attempts.of(t.image)
		}
	}
	if changed {
		r.lookUpLayers(ctx, log, queue, t, &found)
	}
	return found
}

// lookUpLayers asks for the layers of an image, unless the answer was kept because it could not be written.
func (r *Resolver) lookUpLayers(ctx context.Context, log logr.Logger, queue *queue.Queue, t todo, found *outcome) {
	if found.question = "resolve"; r.usage.OnlyOnNodes(t.image.Key) {
		found.question = "held"
	}
	question := lookup.Question{Image: t.image, References: t.image.References, Platforms: t.platforms, Asked: r.nodes.asked(t.platforms)}
	if t.known != nil {
		question.References = []string{t.reference}
	}
	kept := r.backlog.of(t.image)
	if found.learned = kept; kept == nil || !slices.Equal(kept.Platforms, t.platforms) {
		found.learned, found.refusals = r.asker.Resolve(ctx, question)
	}
	if answer := found.learned; answer != nil && answer != kept && ctx.Err() == nil {
		r.answered(queue, found.question)
		log.V(1).Info("Resolved", "reference", answer.Reference, "digest", answer.Digest, "manifests", len(answer.Found.Manifests))
	}
}

// answered notes that a registry answered a question.
func (r *Resolver) answered(queue *queue.Queue, question string) {
	queue.Succeeded()
	r.metrics.lookups.WithLabelValues(question, v1alpha1.ReasonResolved).Inc()
}

// write writes what is known now, or why nothing is. A refusal by a registry is an outcome,
// too: errors are those of the API server.
func (r *Resolver) write(ctx context.Context, log logr.Logger, queue *queue.Queue, t todo, found outcome) (err error) {
	reference, namespaces, known := t.reference, r.usage.Namespaces(t.image.Key), false
	switch {
	case ctx.Err() != nil || t.task == nothing:
	case t.task == refuse:
		r.noteFull(t.image)
	case t.task == adopt:
		if known = r.admit(t.image, usage.Units(r.store.LayersOf(store.DigestOf(reference)))); known {
			err = r.store.Adopt(ctx, reference)
		}
	case found.learned != nil:
		reference = found.learned.Reference
		if known = r.store.Lookup(reference) != nil || r.admit(t.image, quotaUnits(found.learned)); known {
			err = r.publish(ctx, t.image, found.learned)
		}
	case found.refusals != nil:
		err = r.refused(ctx, log, queue, t, found)
	default:
		known, err = true, r.store.Confirmed(ctx, reference, t.known.Digest)
	}
	if known && err == nil {
		r.succeeded(t.image, reference, namespaces)
	}
	return err
}

// admit counts an image that is known now, if there is room for it.
func (r *Resolver) admit(image usage.Image, units int) bool {
	admitted := r.quotas.resolved.Admit(r.usage.Namespaces(image.Key), units)
	if !admitted {
		r.noteFull(image)
	}
	return admitted
}

// publish writes what was learned about an image. If that fails it is kept, so that
// the registry has to answer only once.
func (r *Resolver) publish(ctx context.Context, image usage.Image, answer *lookup.Answer) (err error) {
	// The first reference failed before. It goes first: once the other is written, there is
	// nothing to do any more.
	if first := image.References[0]; first != answer.Reference {
		err = r.store.RemoveUnresolved(ctx, first)
	}
	save := r.store.Resolved
	if answer.Private {
		save = r.store.ResolvedPrivately
	}
	if err == nil {
		err = save(ctx, answer.Reference, answer.Found, answer.Platforms)
	}
	if err != nil {
		r.backlog.keep(image, answer)
	}
	return err
}

// succeeded notes that a reference was written for an image. namespaces used it before.
func (r *Resolver) succeeded(image usage.Image, reference string, namespaces []string) {
	r.attempts.succeeded(image.Key)
	r.backlog.forget(image.Key)
	r.usage.Remember(reference, time.Time{}, namespaces) // if its last workload went meanwhile
}

// refused writes why no registry answered everybody, and keeps what is known: other content of
// a tag, or not all platforms. If nothing is, the image's workloads are notified.
func (r *Resolver) refused(ctx context.Context, log logr.Logger, queue *queue.Queue, t todo, found outcome) (err error) {
	failure := r.noteFailure(log, queue, t.image, found.before, found.refusals)
	r.metrics.lookups.WithLabelValues(found.question, failure.Reason).Inc()
	if t.known != nil {
		err = r.store.NotConfirmed(ctx, t.reference, failure.Failure)
	} else {
		r.notify(t.image, found.before)
		err = r.notResolved(ctx, t.image, failure)
	}
	return err
}

// noteFailure notes why no registry answered everybody for an image, for the queue and
// for the next attempt. before is the last attempt as it was remembered when
// this one began. It returns what is to be written.
func (r *Resolver) noteFailure(log logr.Logger, queue *queue.Queue, image usage.Image, before attempt, refusals lookup.Refusals) attempt {
	var messages []string
	reason, wait := refusals.Reason()
	for _, refusal := range refusals {
		messages = append(messages, refusal.Err.Error())
		e := refusal.Cause()
		switch {
		case queue.Shared() || usage.ImageOf(refusal.Reference).Registry() != image.Registry():
			// Not the queue's registry, or not the only one.
		case e.Busy: // it is not the registry
		case lookup.Temporary(e.Reason):
			wait = max(wait, queue.Failed(e.RetryAfter))
		case e.Reason != v1alpha1.ReasonDenied: // a denied request never reached the registry
			queue.Succeeded()
		}
	}
	if reason == v1alpha1.ReasonUnauthorized && !r.asker.Credentials.Enabled() {
		messages = append(messages, "pull secrets of workloads are not read (--pull-secrets)")
	}
	failure := r.attempts.failed(image, before, reason, lookup.AtMost(lookup.MaxMessage, strings.Join(messages, "; ")), wait)
	if before.lastNotified() != failure.Reason {
		r.logOf(log, image).Info("Not resolved", "reason", failure.Reason, "cause", refusals.Details(), "retry", failure.Retry)
	}
	if refusals.OutOfQuota() {
		// No registry asked to wait: the next process, which may have other settings, need not.
		failure.Retry = time.Time{}
	}
	return failure
}

// notResolved writes why nothing is known about an image, if there is room for another
// object. What the policy denies has none: everybody can make up any number of names.
func (r *Resolver) notResolved(ctx context.Context, image usage.Image, failure attempt) (err error) {
	reference, namespaces := image.References[0], r.usage.Namespaces(image.Key)
	switch {
	case len(namespaces) == 0: // no longer in use
	case failure.Reason == v1alpha1.ReasonDenied:
		err = r.store.RemoveUnresolved(ctx, reference)
	case r.store.Has(reference) || r.quotas.unresolved.Admit(namespaces, 1):
		err = r.store.NotResolved(ctx, reference, failure.Failure)
		r.usage.Remember(reference, time.Time{}, namespaces) // if its last workload went meanwhile
	default:
		r.metrics.unwritten.Inc()
	}
	return err
}

// notify notifies the workloads that use an image why it is not resolved, if they were not
// yet; else only those of namespaces that brought other pull secrets since. before is the
// attempt before this one. So nobody can have others notified again and again.
func (r *Resolver) notify(image usage.Image, before attempt) {
	pending := r.attempts.takePendingNotices(image.Key)
	if before.lastNotified() != r.attempts.of(image).Reason {
		pending = nil
		r.reportFailure(image, r.usage.Workloads(image.Key, maxEvents)...)
	}
	for _, namespace := range pending {
		r.reportFailure(image, r.usage.WorkloadsIn(image.Key, namespace, maxEvents)...)
	}
}

// noteFull notes that there is no room for an image. Its workloads are notified, and it is asked
// for again some time later.
func (r *Resolver) noteFull(image usage.Image) {
	before := r.attempts.of(image)
	r.attempts.failed(image, before, v1alpha1.ReasonTooMany, brief(v1alpha1.ReasonTooMany), 0)
	if before.lastNotified() != v1alpha1.ReasonTooMany {
		r.logOf(r.log, image).Info("Not resolved", "image", image.Key, "reason", v1alpha1.ReasonTooMany, "namespaces", r.usage.Namespaces(image.Key))
	}
	r.notify(image, before)
}

// notAccepted notes that the API server takes no object with what is known about an image. That is
// an outcome of this image, of which its workloads are notified.
func (r *Resolver) notAccepted(ctx context.Context, log logr.Logger, image usage.Image, err error) {
	r.metrics.writeErrors.Inc()
	r.backlog.forget(image.Key)
	before := r.attempts.of(image)
	failure := r.attempts.failed(image, before, v1alpha1.ReasonNotAccepted, brief(v1alpha1.ReasonNotAccepted), 0)
	if before.lastNotified() != failure.Reason {
		r.logOf(log, image).Info("The API server does not accept an ImageManifest", "cause", err.Error(), "retry", failure.Retry)
	}
	r.notify(image, before)
	if _, known := r.known(image); known == nil {
		if err := r.notResolved(ctx, image, failure); err != nil {
			log.V(1).Info("The API server does not accept an object with the reason either", "cause", err.Error())
		}
	}
}

// notWritten queues an image again whose answer the API server did not take.
func (r *Resolver) notWritten(log logr.Logger, q *queue.Queue, image usage.Image, err error) {
	log.Error(err, "Cannot write the ImageManifests of an image")
	r.metrics.writeErrors.Inc()
	wait, outage := r.backlog.failed(image)
	if outage {
		q.Pause(wait) // there is no point in asking this registry for more meanwhile
	}
	r.enqueue(image, wait, queue.Resolving)
}

// forgetUnused drops what was noted about an image after the handler that saw the
// end of its use.
func (r *Resolver) forgetUnused(key string) {
	if !r.usage.InUse(key) {
		r.release(key)
	}
}

// logOf returns the log for a line about an image: that with more details, if its namespace has had many.
func (r *Resolver) logOf(log logr.Logger, image usage.Image) logr.Logger {
	if namespaces := r.usage.Namespaces(image.Key); len(namespaces) > 0 && !r.notifier.logs(namespaces[0]) {
		return log.V(1)
	}
	return log
}

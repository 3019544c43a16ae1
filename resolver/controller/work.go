package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/pullsecrets"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
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
	learned  *learned
	refusals []refusal
}

// lookUp asks registries what is due: whether a tag still points to the same digest, and for
// the layers if it does not, or if these are not known for all platforms. What the registry
// answers to pull secrets stays between it and their namespace, unless PublishPrivate is
// set; objects say what it answers to everybody.
func (r *Resolver) lookUp(ctx context.Context, log logr.Logger, queue *queue.Queue, t todo) outcome {
	found := outcome{before: t.last, question: "confirm"}
	changed := t.task == resolve
	if t.task == confirm {
		digest, err := r.digest(ctx, t)
		if err != nil {
			found.refusals = []refusal{{t.reference, err}}
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
	references := t.image.References
	if t.known != nil {
		references = []string{t.reference}
	}
	kept := r.backlog.of(t.image)
	if found.learned = kept; kept == nil || !slices.Equal(kept.platforms, t.platforms) {
		found.learned, found.refusals = r.question(ctx, log, t.image, references)
	}
	if answer := found.learned; answer != nil && answer != kept && ctx.Err() == nil {
		r.answered(queue, found.question)
		log.V(1).Info("Resolved", "reference", answer.reference, "digest", answer.found.Digest, "manifests", len(answer.found.Manifests))
	}
}

// question asks for an image with pull secrets, and then as everybody may; as everybody first, if a namespace that
// names the image has none for it: those of others cost it no requests. What everybody is refused and may not be
// published is asked for with HEAD requests of pull secrets, which quotas of registries do not count.
func (r *Resolver) question(ctx context.Context, log logr.Logger, image usage.Image, references []string) (answer *learned, public []refusal) {
	secrets := r.nextSecrets(ctx, image)
	without := func(o *pullsecrets.OfNamespace) bool { return o.None(ctx, references) }
	forAll := everybody{}
	switch {
	case slices.ContainsFunc(secrets, without):
		if answer, forAll.refusals = r.find(ctx, references, r.credentials.ForAll()); answer != nil {
			return answer, nil
		}
		if !r.options.PublishPrivate && slices.ContainsFunc(forAll.refusals, outOfQuota) {
			forAll = r.everybody(ctx, references) // it may be public, and somebody's quota have room for it
		}
	case len(secrets) > 0 && !r.options.PublishPrivate:
		forAll = r.everybody(ctx, references)
	}
	if ctx.Err() != nil {
		return nil, forAll.refusals
	}
	answer, public = r.withSecrets(ctx, log, image, references, secrets, forAll)
	switch {
	case answer != nil || public != nil || ctx.Err() != nil:
		return answer, public
	case forAll.refusals != nil && forAll.digest == "":
		return nil, forAll.refusals
	}
	return r.find(ctx, references, r.credentials.ForAll())
}

// everybody is what registries answer to everybody: the first of the references that they may pull, and its digest; and
// the refusals of those before it.
type everybody struct {
	reference, digest string
	refusals          []refusal
}

func (r *Resolver) everybody(ctx context.Context, references []string) (e everybody) {
	e.reference, e.refusals = first(ctx, references, func(reference string) error {
		digest, err := r.options.Registry.Digest(ctx, reference, r.credentials.ForAll())
		if err == nil {
			e.digest = digest
		}
		return err
	})
	return e
}

// answered notes that a registry answered a question.
func (r *Resolver) answered(queue *queue.Queue, question string) {
	queue.Succeeded()
	r.metrics.lookups.WithLabelValues(question, v1alpha1.ReasonResolved).Inc()
}

// digest asks for the digest that a tag points to. What is public is asked for without pull
// secrets, and if only they open it, the error is what the registry answers to everybody.
func (r *Resolver) digest(ctx context.Context, t todo) (string, error) {
	digest, public := r.options.Registry.Digest(ctx, t.reference, r.credentials.ForAll())
	if public == nil || !t.known.Private || ctx.Err() != nil {
		return digest, public
	}
	for _, own := range r.nextSecrets(ctx, t.image) {
		digest, err := r.options.Registry.Digest(ctx, t.reference, append(own.Keychains, keychains.NotAnonymously))
		if err == nil || ctx.Err() != nil {
			return digest, err
		}
	}
	return "", public
}

// withSecrets asks for an image with these pull secrets, one namespace's at a time. It returns an
// answer that may be published. If pull secrets opened an image that is not for everybody,
// it returns what the registry answers to everybody instead. If they opened none, it
// returns nothing. forAll is what is known of what everybody may pull.
func (r *Resolver) withSecrets(ctx context.Context, log logr.Logger, image usage.Image, references []string, secrets []*pullsecrets.OfNamespace, forAll everybody) (answer *learned, public []refusal) {
	ask := r.find
	if !r.options.PublishPrivate && forAll.digest == "" && forAll.refusals != nil {
		ask = r.look
	}
	for _, own := range secrets {
		found := r.openedBy(ctx, log, own, image, references, ask)
		if found == nil {
			continue
		}
		if found.found != nil {
			e := forAll
			switch {
			case r.credentials.IsForAll(found.found.By):
				e = everybody{reference: found.reference, digest: found.found.Digest}
			case forAll.digest == "":
				e = r.everybody(ctx, []string{found.reference})
			}
			same := e.reference == found.reference && e.digest == found.found.Digest
			if same || r.options.PublishPrivate {
				found.private = !same
				return found, nil
			}
			forAll.refusals = append(forAll.refusals, e.refusals...)
		}
		if at := slices.IndexFunc(forAll.refusals, func(r refusal) bool { return r.reference == found.reference }); at >= 0 {
			public = forAll.refusals[at : at+1]
			log.V(1).Info("Resolved for one namespace only", "namespace", own.Namespace, "reference", found.reference)
		}
	}
	return nil, public
}

// openedBy asks for an image with the pull secrets of a namespace, unless they opened it a short
// time ago and that concerns nobody else. It returns nil if they do not open it.
func (r *Resolver) openedBy(ctx context.Context, log logr.Logger, own *pullsecrets.OfNamespace, image usage.Image, references []string, ask asks) (found *learned) {
	opened := r.attempts.secretsOf(image.Key, own.Namespace).opened
	if ctx.Err() != nil || !r.options.PublishPrivate && r.clock.Since(opened) < r.options.TagTTL {
		return nil
	}
	var refusals []refusal
	if len(own.Keychains) > 0 {
		found, refusals = ask(ctx, references, append(own.Keychains, keychains.NotAnonymously))
	}
	if ctx.Err() != nil {
		return nil
	}
	if found == nil && !slices.ContainsFunc(refusals, asked) {
		own.Keychains, refusals = nil, nil // they are for other registries
	}
	// Also if it seems to be the registry: a secret may bring that about.
	if changed := r.noteSecrets(image, own, refusals); changed && refusals != nil && found == nil && r.notifier.logs(own.Namespace) {
		log.Info("Not resolved with pull secrets", "namespace", own.Namespace, "cause", detailsOf(refusals))
	}
	return found
}

// maxPulls bounds how many workloads' pull secrets are tried for an image at a time.
const maxPulls = 8

// nextSecrets reads the pull secrets whose turn it is for an image, unless none of its
// references may be asked for.
func (r *Resolver) nextSecrets(ctx context.Context, image usage.Image) []*pullsecrets.OfNamespace {
	if !r.credentials.Enabled() || r.denied(image.Key) {
		return nil
	}
	from, newest := r.attempts.takeNextSecrets(image.Key)
	pulls, next := r.usage.PullsFrom(image.Key, from, maxPulls)
	if r.usage.PulledWith(image.Key, newest) && len(pulls) > 0 && !slices.Contains(pulls, newest) {
		// It takes one place, whose turn is the next time: those who bring others all the
		// time keep nobody from theirs.
		last := len(pulls) - 1
		next = pulls[last]
		pulls = append([]usage.Pull{newest}, pulls[:last]...)
	}
	r.attempts.setNextSecrets(image.Key, next)
	return r.credentials.ByNamespace(ctx, pulls)
}

// asks is find or look.
type asks func(ctx context.Context, references []string, keychains []authn.Keychain) (*learned, []refusal)

// look asks which of the references is there, without what it has, in the order of find.
func (r *Resolver) look(ctx context.Context, references []string, keychains []authn.Keychain) (*learned, []refusal) {
	reference, refusals := first(ctx, references, func(reference string) error {
		_, err := r.options.Registry.Digest(ctx, reference, keychains)
		return err
	})
	if reference == "" {
		return nil, refusals
	}
	return &learned{reference: reference}, nil
}

// find asks for the references until one is found, as a container runtime does.
func (r *Resolver) find(ctx context.Context, references []string, keychains []authn.Keychain) (answer *learned, refusals []refusal) {
	platforms := r.nodes.clusterPlatforms()
	_, refusals = first(ctx, references, func(reference string) error {
		found, err := r.options.Registry.Resolve(ctx, reference, r.nodes.asked(), keychains)
		if err == nil {
			answer = &learned{reference: reference, found: found, platforms: platforms}
		}
		return err
	})
	if answer != nil {
		return answer, nil
	}
	return nil, refusals
}

// first asks for the references until one is answered, which it returns, and the refusals of those before it.
func first(ctx context.Context, references []string, ask func(reference string) error) (reference string, refusals []refusal) {
	for _, reference := range references {
		err := ask(reference)
		if err == nil {
			return reference, refusals
		}
		if refusals = append(refusals, refusal{reference, err}); ctx.Err() != nil {
			break
		}
	}
	return "", refusals
}

// asked reports whether a refusal is that of a registry, and not that no credential is for
// it.
func asked(refusal refusal) bool { return !errors.Is(refusal.err, registry.ErrNoCredentials) }

// noteSecrets notes how it went with the pull secrets of a namespace: without refusals,
// they opened the image, or there were none to try. It reports whether that is new.
func (r *Resolver) noteSecrets(image usage.Image, own *pullsecrets.OfNamespace, refusals []refusal) (changed bool) {
	now := secretAttempt{message: atMost(maxMessage, strings.Join(own.Problems, "; "))}
	switch {
	case len(refusals) > 0:
		now.reason, _ = reasonOf(refusals)
		if now.message == "" {
			now.message = brief(now.reason)
		}
	case len(own.Keychains) > 0:
		now = secretAttempt{opened: r.clock.Now()}
	}
	changed = r.attempts.noteSecrets(image.Key, own.Namespace, now, func() []string { return r.usage.Namespaces(image.Key) })
	if changed && now.message != "" && r.attempts.of(image).Reason != "" { // or it is notified with the refusal
		r.reportFailure(image, r.usage.WorkloadsIn(image.Key, own.Namespace, maxEvents)...)
	}
	return changed
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
		reference = found.learned.reference
		if known = r.store.Lookup(reference) != nil || r.admit(t.image, found.learned.quotaUnits()); known {
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
func (r *Resolver) publish(ctx context.Context, image usage.Image, answer *learned) (err error) {
	// The first reference failed before. It goes first: once the other is written, there is
	// nothing to do any more.
	if first := image.References[0]; first != answer.reference {
		err = r.store.RemoveUnresolved(ctx, first)
	}
	save := r.store.Resolved
	if answer.private {
		save = r.store.ResolvedPrivately
	}
	if err == nil {
		err = save(ctx, answer.reference, answer.found, answer.platforms)
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
func (r *Resolver) noteFailure(log logr.Logger, queue *queue.Queue, image usage.Image, before attempt, refusals []refusal) attempt {
	var messages []string
	reason, wait := reasonOf(refusals)
	for _, refusal := range refusals {
		messages = append(messages, refusal.err.Error())
		e := asRegistryError(refusal.err)
		switch {
		case queue.Shared() || usage.ImageOf(refusal.reference).Registry() != image.Registry():
			// Not the queue's registry, or not the only one.
		case e.Busy: // it is not the registry
		case temporary(e.Reason):
			wait = max(wait, queue.Failed(e.RetryAfter))
		case e.Reason != v1alpha1.ReasonDenied: // a denied request never reached the registry
			queue.Succeeded()
		}
	}
	if reason == v1alpha1.ReasonUnauthorized && !r.credentials.Enabled() {
		messages = append(messages, "pull secrets of workloads are not read (--pull-secrets)")
	}
	failure := r.attempts.failed(image, before, reason, atMost(maxMessage, strings.Join(messages, "; ")), wait)
	if before.lastNotified() != failure.Reason {
		r.logOf(log, image).Info("Not resolved", "reason", failure.Reason, "cause", detailsOf(refusals), "retry", failure.Retry)
	}
	if !slices.ContainsFunc(refusals, func(r refusal) bool { return !outOfQuota(r) }) {
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

// maxMessage bounds messages in conditions and events (bytes).
const maxMessage = 1000

// refusal is the error that the registry of a reference answered with.
type refusal struct {
	reference string
	err       error
}

// outOfQuota reports whether a refusal is about the quota of one credential: others may have
// more.
func outOfQuota(refusal refusal) bool {
	e := asRegistryError(refusal.err)
	return e.Busy && e.Reason == v1alpha1.ReasonRateLimited
}

// logOf returns the log for a line about an image: that with more details, if its namespace has had many.
func (r *Resolver) logOf(log logr.Logger, image usage.Image) logr.Logger {
	if namespaces := r.usage.Namespaces(image.Key); len(namespaces) > 0 && !r.notifier.logs(namespaces[0]) {
		return log.V(1)
	}
	return log
}

// detailsOf returns what the log has about refusals.
func detailsOf(refusals []refusal) string {
	var details []string
	for _, refusal := range refusals {
		details = append(details, registry.Details(refusal.err))
	}
	return atMost(maxMessage, strings.Join(details, "; "))
}

// reasonOf returns the reason of several refusals, and the longest wait that the
// registries ask for. A temporary failure takes precedence over a final one: the image may
// exist.
func reasonOf(refusals []refusal) (reason string, wait time.Duration) {
	for _, refusal := range refusals {
		e := asRegistryError(refusal.err)
		wait = max(wait, e.RetryAfter)
		if reason == "" || temporary(e.Reason) && !temporary(reason) {
			reason = e.Reason
		}
	}
	return reason, wait
}

func asRegistryError(err error) *registry.Error {
	e := &registry.Error{Reason: v1alpha1.ReasonUnavailable}
	errors.As(err, &e)
	return e
}

// atMost returns the beginning of a text, at most that many bytes.
func atMost(bytes int, text string) string {
	if len(text) > bytes {
		return strings.ToValidUTF8(text[:bytes], "")
	}
	return text
}

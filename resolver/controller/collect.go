package controller

import (
	"context"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// keepUnresolved is how long a reference that was never resolved stays known after its
// last use, if KeepUnused is not shorter.
const keepUnresolved = 10 * time.Minute

// collect removes references that nothing has used for KeepUnused, and the oldest of
// namespaces with too many, until the context is done.
func (r *Resolver) collect(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery(r.options.KeepUnused))
	defer ticker.Stop()
	for {
		r.sweep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sweepEvery is how often references are looked at that are kept for a time.
func sweepEvery(keep time.Duration) time.Duration {
	return min(max(keep/10, time.Second), 5*time.Second)
}

// sweep does once what collect does.
func (r *Resolver) sweep(ctx context.Context) {
	r.quotas.resolved.Begin()
	r.quotas.unresolved.Begin()
	var resolved, unresolved, unused []usage.Held
	var noted []func() error
	for _, h := range r.store.All() {
		held := usage.Held{Reference: h.Reference, Units: usage.Units(h.Layers), Tenant: r.usage.TenantOf(h.Reference)}
		switch {
		case r.outdated(h):
			r.remove(ctx, h.Reference)
			r.askAgain([]string{h.Reference}) // if it is in use, or came into use meanwhile
			continue
		case !h.Resolved:
			unresolved = append(unresolved, held)
		case held.InUse:
			resolved = append(resolved, held)
		default:
			unused = append(unused, held)
		}
		since := time.Time{}
		if !held.InUse {
			since = held.Since.Truncate(time.Second)
		}
		if !since.Equal(h.Unused) {
			noted = append(noted, func() error { return r.store.NoteUnused(ctx, h.Reference, since) })
		}
	}
	r.quotas.unresolved.Recount(unresolved, func(reference string) { r.remove(ctx, reference) })
	r.quotas.unused.Recount(unused, func(reference string) {
		r.remove(ctx, reference)
		r.askAgain([]string{reference}) // if it came into use meanwhile
	})
	r.quotas.resolved.Recount(resolved, func(reference string) {
		r.remove(ctx, reference)
		for _, image := range r.usage.Meaning([]string{reference}) {
			r.noteFull(image)
			// A digest is not looked at again by itself, and there may be room later.
			r.enqueue(image, r.options.TagTTL, queue.Confirming)
		}
	})
	// For the next process, too.
	for _, note := range noted {
		if err := note(); err != nil && ctx.Err() == nil {
			r.log.Error(err, "Cannot record since when a reference is unused")
			return
		}
	}
}

// outdated reports whether a reference has to go: unused for too long, or not to be kept by
// the options, which may have changed with a restart.
func (r *Resolver) outdated(h store.ReferenceInfo) bool {
	keep := r.options.KeepUnused
	if !h.Resolved {
		keep = min(keep, keepUnresolved)
	}
	return r.usage.UnusedFor(h.Reference, keep) ||
		!h.Resolved && h.Reason == v1alpha1.ReasonDenied ||
		h.Private && !r.options.PublishPrivate
}

// remove takes a reference from all objects.
func (r *Resolver) remove(ctx context.Context, reference string) {
	if ctx.Err() != nil {
		return
	}
	if err := r.store.RemoveReference(ctx, reference); err != nil && ctx.Err() == nil {
		r.log.Error(err, "Cannot remove a reference", "reference", reference)
		return
	}
	if !r.usage.TenantOf(reference).InUse {
		r.usage.ForgetIdle(reference)
	}
}

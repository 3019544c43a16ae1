package controller

import (
	"context"
	"time"
)

// collect removes references that nothing has used for KeepUnused, until the context
// is done.
func (r *Resolver) collect(ctx context.Context) {
	ticker := time.NewTicker(min(max(r.options.KeepUnused/10, time.Second), 10*time.Minute))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, reference := range r.store.references() {
			if ctx.Err() != nil || !r.usage.unusedFor(reference, r.options.KeepUnused) {
				continue
			}
			if err := r.saved(r.store.removeReference(ctx, reference)); err != nil && ctx.Err() == nil {
				r.log.Error(err, "Removing an unused reference", "reference", reference)
			}
			r.askAgain([]string{reference}) // if it came into use meanwhile
		}
	}
}

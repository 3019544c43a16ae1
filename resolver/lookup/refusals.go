package lookup

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// Refusal is the error that the registry of a reference answered with.
type Refusal struct {
	Reference string
	Err       error
}

// Cause is what the registry answered.
func (r Refusal) Cause() *registry.Error {
	e := &registry.Error{Reason: v1alpha1.ReasonUnavailable}
	errors.As(r.Err, &e)
	return e
}

// outOfQuota reports whether a refusal is about the quota of one credential: others may have
// more.
func (r Refusal) outOfQuota() bool {
	e := r.Cause()
	return e.Busy && e.Reason == v1alpha1.ReasonRateLimited
}

// answered reports whether a refusal is that of a registry, and not that no credential is for
// it.
func (r Refusal) answered() bool { return !errors.Is(r.Err, registry.ErrNoCredentials) }

// Refusals are those of several references.
type Refusals []Refusal

// OutOfQuota reports whether all are about the quota of one credential: no registry asked to wait.
func (r Refusals) OutOfQuota() bool {
	return !slices.ContainsFunc(r, func(one Refusal) bool { return !one.outOfQuota() })
}

// Reason returns the reason of several refusals, and the longest wait that the
// registries ask for. A temporary failure takes precedence over a final one: the image may
// exist.
func (r Refusals) Reason() (reason string, wait time.Duration) {
	for _, refusal := range r {
		e := refusal.Cause()
		wait = max(wait, e.RetryAfter)
		if reason == "" || Temporary(e.Reason) && !Temporary(reason) {
			reason = e.Reason
		}
	}
	return reason, wait
}

// Details returns what the log has about refusals.
func (r Refusals) Details() string {
	var details []string
	for _, refusal := range r {
		details = append(details, registry.Details(refusal.Err))
	}
	return AtMost(MaxMessage, strings.Join(details, "; "))
}

// Temporary reports whether a failure is about the registry and not about the
// image.
func Temporary(reason string) bool {
	return reason == v1alpha1.ReasonRateLimited || reason == v1alpha1.ReasonUnavailable
}

// MaxMessage bounds messages in conditions and events (bytes).
const MaxMessage = 1000

// AtMost returns the beginning of a text, at most that many bytes.
func AtMost(bytes int, text string) string {
	if len(text) > bytes {
		text = strings.ToValidUTF8(text[:bytes], "")
	}
	return text
}

package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	ggcr "github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// Error is every error of References, Resolve and Digest. Its text, and that of
// Err, may be shown to whoever may see the reference: at most 512 bytes, without
// control characters, credentials, queries of addresses, or words of the registry.
type Error struct {
	// Reason is one of v1alpha1.Reason...
	Reason string
	// Reference that was asked for.
	Reference string
	// Host that was contacted or would have been; "" if the failure came before
	// that.
	Host string
	// RetryAfter is the wait that the registry asked for, at most an hour; 0 if it
	// asked for none.
	RetryAfter time.Duration
	// Err is what happened and what can be done about it, without the reference.
	Err error
	// Busy is set if the client, and not the registry, could not do more at the time.
	Busy bool
	// details are for the log: they may show what the resolver can reach.
	details string
	// code is the HTTP status that the request ended with; 0 if with none.
	code int
	// login is set if the credential itself was refused, and not only this repository.
	login bool
}

// Details returns the text of an error for those who operate the resolver.
func Details(err error) string {
	var e *Error
	if errors.As(err, &e) && e.details != "" {
		return printable(e.Reference + ": " + e.details)
	}
	return err.Error()
}

func (e *Error) Error() string { return printable(e.Reference + ": " + e.Err.Error()) }

func (e *Error) Unwrap() error { return e.Err }

// asError returns a copy of the *Error in an error of this package. A copy, because
// callers that wait for the same answer share the error.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		own := *e
		return &own
	}
	return &Error{Reason: v1alpha1.ReasonUnavailable, Err: text(err, "%s", err)}
}

func withReference(err error, reference string) *Error {
	e := asError(err)
	e.Reference = reference
	return e
}

func denied(host string, err error) *Error {
	return &Error{Reason: v1alpha1.ReasonDenied, Host: host, Err: text(err, "%s", err)}
}

func invalidManifest(format string, args ...any) *Error {
	return &Error{Reason: v1alpha1.ReasonInvalidManifest, Err: text(nil, format, args...)}
}

// described is an error with its own text.
type described struct {
	text  string
	cause error
}

func (d *described) Error() string { return d.text }
func (d *described) Unwrap() error { return d.cause }

// text returns an error with a text that may be shown. The cause is for
// errors.Is and errors.As.
func text(cause error, format string, args ...any) error {
	return &described{printable(fmt.Sprintf(format, args...)), cause}
}

// maxMessage bounds messages, which end up in conditions and events (bytes).
const maxMessage = 512

// printable makes a text from outside safe to show.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	const more = "..."
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage-len(more)], "") + more
	}
	return text
}

// refusal is why the client itself ended a request.
type refusal struct {
	reason string
	text   string
}

func (r *refusal) Error() string { return r.text }

// failure returns what the error of a request means. Texts of servers and of
// net/http are not passed on: they may contain addresses with their queries, and
// a server may repeat what it was sent.
func (x *exchange) failure(err error) *Error {
	e := &Error{Host: x.lastHost(), RetryAfter: time.Duration(x.retryAfter.Load())}
	var (
		status     *ggcr.Error
		denial     *policy.Denied
		refused    *refusal
		lookup     *net.DNSError
		connection *net.OpError
	)
	unavailable := func(cause error, format string, args ...any) *Error {
		e.Reason = v1alpha1.ReasonUnavailable
		e.Err = text(cause, "%s %s", x.subject(), fmt.Sprintf(format, args...))
		if x.indirect() {
			x.conceal(e)
		}
		return e
	}
	var proxy *net.OpError
	switch {
	case errors.As(err, &status):
		return x.status(e, status.StatusCode)
	case errors.As(err, &denial):
		e.Reason = v1alpha1.ReasonDenied
		e.Err = text(denial, "%s: %s", x.subject(), denial)
		return e
	case errors.As(err, &proxy) && proxy.Op == "proxyconnect": // as net/http calls it
		return unavailable(nil, "cannot be asked: its proxy cannot be reached, or has no certificate that is trusted here")
	case errors.Is(err, errTooLarge):
		e.Reason = v1alpha1.ReasonInvalidManifest
		e.Err = text(nil, "%s sent more than %d bytes", x.subject(), maxBody)
		return e
	case errors.Is(err, context.Canceled):
		return unavailable(context.Canceled, "was not asked to the end: canceled")
	case errors.Is(err, errBusy):
		e.Busy = true
		return unavailable(nil, "sent an answer of more than %d bytes, while too many others did", smallBody)
	case errors.As(err, &lookup):
		if lookup.IsNotFound {
			return unavailable(nil, "does not exist: no such host")
		}
		return unavailable(nil, "cannot be looked up: the name server gives no answer")
	case timedOut(err):
		return unavailable(context.DeadlineExceeded, "gave no complete answer in time")
	case isCertificateError(err):
		return unavailable(nil, "has no certificate that is trusted here: add its authority with --ca-bundle or --certs-dir, or set insecure in registries.conf")
	case errors.Is(err, http.ErrSchemeMismatch):
		return unavailable(nil, "speaks plain HTTP: set insecure in registries.conf if that is meant to be")
	case errors.As(err, &connection):
		return unavailable(nil, "cannot be reached: %s", connection)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return unavailable(nil, "ended the connection before the answer was complete")
	case errors.As(err, &refused):
		e.Reason = refused.reason
		e.Err = text(nil, "%s %s", x.subject(), refused.text)
		return e
	}
	// go-containerregistry does not return the status if it cannot read the body.
	if code := int(x.code.Load()); code >= http.StatusBadRequest {
		return x.status(e, code)
	}
	if x.unsent.Load() && x.shows() && (x.kind == kindToken || len(x.authorization) > 4<<10 || strings.ContainsFunc(x.authorization, unicode.IsControl)) {
		// The rest of the request is the same for everybody.
		e.Reason = v1alpha1.ReasonUnauthorized
		e.Err = text(nil, "%s was not asked: the credentials given, an imagePullSecret for example, cannot be sent to it; they are too long, perhaps", x.subject())
		return e
	}
	return unavailable(nil, "gave no usable answer")
}

// conceal replaces the text of an error by one that does not show how another host
// answered, to which a registry sent the request: whoever owns a registry could look
// through the network with it.
func (x *exchange) conceal(e *Error) {
	e.details = e.Err.Error()
	e.Err = text(errors.Unwrap(e.Err), "registry %s sends requests to another host, which gives no usable answer", x.source.domain)
}

// status returns what the status of an answer means.
func (x *exchange) status(e *Error, code int) *Error {
	e.code = code
	said := fmt.Sprintf("%s answered %s", x.subject(), strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code))))
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusRequestHeaderFieldsTooLarge && !x.anonymous,
		x.kind == kindToken && (code == http.StatusBadRequest || !x.anonymous && refuses(code)):
		e.Reason = v1alpha1.ReasonUnauthorized
		if x.anonymous {
			said += ": it requires credentials, by an imagePullSecret for example, or the repository does not exist, which some registries answer in the same way"
		} else {
			said += ": the credentials given, an imagePullSecret for example, are wrong or not for this repository, or it does not exist, which some registries answer in the same way"
		}
	case code == http.StatusNotFound && x.kind == kindManifest:
		e.Reason = v1alpha1.ReasonNotFound
		said += ": no such repository, tag or digest"
	case code == http.StatusTooManyRequests:
		e.Reason = v1alpha1.ReasonRateLimited
		if e.RetryAfter > 0 {
			said += fmt.Sprintf(", to come back in %s", e.RetryAfter)
		}
		if x.anonymous {
			said += "; with credentials the limit may be higher"
		}
	case x.kind == kindManifest && refuses(code):
		e.Reason = v1alpha1.ReasonNotFound
		said += ": it does not serve this name"
	default:
		e.Reason = v1alpha1.ReasonUnavailable
	}
	// With a token, a registry refuses what is asked for, not who asks.
	e.login = code == http.StatusUnauthorized && !x.elsewhere() && x.shows() && !x.ownToken
	e.Err = text(nil, "%s", said)
	if e.Reason == v1alpha1.ReasonUnavailable && x.indirect() {
		x.conceal(e)
	}
	return e
}

// shows reports whether the request itself has the credential.
func (x *exchange) shows() bool {
	return !x.anonymous && (x.kind == kindToken || strings.HasPrefix(x.authorization, "Basic ") || x.ownToken)
}

// elsewhere reports whether another host than the registry answered a request for the registry
// itself: it was not given the credential.
func (x *exchange) elsewhere() bool { return x.kind != kindToken && x.indirect() }

// refuses reports whether a status is about the requested image and not about
// the server. Callers stop asking a server that is in trouble. A workload must
// not be able to cause that for others through the image that it names.
func refuses(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return code >= 400 && code < 500
}

func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

func isCertificateError(err error) bool {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	return errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid)
}

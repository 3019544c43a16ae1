package registry

import (
	"strings"
	"time"
	"unicode"
)

// Error is every error of References, Resolve and Digest. Its text, and that of
// Err, is safe to show to whoever may see the reference: at most 512 bytes,
// without control characters, credentials, queries of addresses, or words of
// the registry.
type Error struct {
	// Reason is one of v1alpha1.Reason...
	Reason string
	// Reference that was asked for.
	Reference string
	// Host that was contacted, or was to be; "" if it did not come to that.
	Host string
	// RetryAfter is what the registry asked for, at most an hour; 0 if nothing.
	RetryAfter time.Duration
	// Err says what happened and what can be done about it, without the reference.
	Err error
}

func (e *Error) Error() string {
	return printable(e.Reference + ": " + e.Err.Error())
}

func (e *Error) Unwrap() error { return e.Err }

// maxMessage is how many bytes a message has at most: they end up in conditions
// and events.
const maxMessage = 512

// printable makes a text of foreign origin fit to be shown.
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

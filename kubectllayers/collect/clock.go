package collect

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock is that of the apiserver, by the dates of its answers. By the clock of a user's machine, which may
// be wrong by hours, agents and the scheduler would seem to be gone.
type clock struct {
	ahead atomic.Int64 // of this machine's, in nanoseconds
}

// coarse is a difference that means nothing: answers have whole seconds, and were on their way.
const coarse = 2 * time.Second

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// wrap returns a transport that sets the clock by the dates of answers.
func (c *clock) wrap(transport http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := transport.RoundTrip(request)
		if err == nil {
			if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
				ahead := time.Until(date)
				if ahead.Abs() <= coarse {
					ahead = 0
				}
				c.ahead.Store(int64(ahead))
			}
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

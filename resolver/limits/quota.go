// Package limits has the quotas of registries: how many manifests they still give, and how many of these are left to
// the nodes; and which credentials they take.
package limits

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// QuotaFresh is how long a quota counts. Others use it too, so a HEAD request,
	// which does not count, asks for it again after that.
	QuotaFresh = time.Minute
	// QuotaWait is how long to wait, at most, before a GET is tried again for which too
	// little was left.
	QuotaWait = 10 * time.Minute
	// maxQuota bounds what a registry may state.
	maxQuota = 1 << 30
)

// Quota is how many manifests a registry still gives to one credential. Docker Hub states
// it in the header fields of draft-ietf-httpapi-ratelimit-headers-00 to -06, in the form of 100;w=21600
// (https://docs.docker.com/docker-hub/usage/pulls/); no other registry is known to state one.
type Quota struct {
	// Asking is held while the quota is asked for, so that only one request does.
	Asking sync.Mutex

	mu sync.Mutex
	// heard is set after the first answer.
	heard bool
	// limit and remaining of the window; limit is 0 if the registry states none.
	limit, remaining int
	window           time.Duration
	// at is when the answer came that stated the rest.
	at time.Time
	// underWay are requests that may not be part of remaining yet.
	underWay int
}

// Unsure reports whether a registry that counts requests has to be asked how many are left. counts is set if the
// registry is known to count; otherwise its first answer shows whether it does.
func (q *Quota) Unsure(counts bool, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.limit > 0 && now.Sub(q.at) >= max(q.window, QuotaFresh) {
		q.heard, q.limit = false, 0 // another window has begun
	}
	if !q.heard {
		return counts
	}
	return q.limit > 0 && now.Sub(q.at) >= QuotaFresh
}

// Short is why a request was not counted: what a registry has left is kept for the nodes.
type Short struct {
	// Remaining and Limit are what the registry stated, and Kept is how many are for the nodes.
	Remaining, Limit, Kept int
	// After is when to try again.
	After time.Duration
}

// Take counts a request that is about to be sent, or returns why too little is left for it. forNodes is the share of
// the limit that is left to the nodes.
func (q *Quota) Take(forNodes float64) *Short {
	q.mu.Lock()
	defer q.mu.Unlock()
	if keep := int(math.Ceil(forNodes * float64(q.limit))); q.limit > 0 && q.remaining-q.underWay <= keep {
		return &Short{Remaining: q.remaining, Limit: q.limit, Kept: keep, After: max(time.Second, min(q.window, QuotaWait))}
	}
	q.underWay++
	return nil
}

// Done ends what Take began. A request that failed may have counted, without an answer that
// says so.
func (q *Quota) Done(failed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.underWay--
	if failed {
		q.remaining = max(0, q.remaining-1)
	}
}

// Hear notes what an answer states. begun is when its request was sent: of answers that
// overtake each other, the lowest rest counts. An answer with what was asked for that states no
// quota ends an earlier one: there is another plan now, or only refusals state it.
func (q *Quota) Hear(code int, header http.Header, begun, now time.Time) (remaining int, stated bool) {
	limit, window, ok := parseQuota(header.Get("RateLimit-Limit"))
	remaining, _, also := parseQuota(header.Get("RateLimit-Remaining"))
	q.mu.Lock()
	defer q.mu.Unlock()
	if !ok || !also || limit == 0 {
		if code == http.StatusOK {
			q.heard = true
			if begun.After(q.at) {
				q.limit = 0
			}
		}
		return 0, false
	}
	q.heard = true
	if limit == q.limit && remaining > q.remaining && !begun.After(q.at) {
		return q.remaining, true
	}
	q.limit, q.remaining, q.window, q.at = limit, remaining, window, now
	return remaining, true
}

// parseQuota reads a header field such as "100;w=21600", or the first item of several: a
// number of requests, and the seconds of the window.
func parseQuota(field string) (requests int, window time.Duration, ok bool) {
	first, _, _ := strings.Cut(field, ",")
	parts := strings.Split(first, ";")
	n, err := strconv.ParseUint(strings.TrimSpace(parts[0]), 10, 31)
	if err != nil {
		return 0, 0, false
	}
	window = QuotaWait
	for _, part := range parts[1:] {
		if seconds, found := strings.CutPrefix(strings.TrimSpace(part), "w="); found {
			if w, err := strconv.ParseUint(seconds, 10, 31); err == nil {
				window = time.Duration(w) * time.Second
			}
		}
	}
	return min(int(n), maxQuota), window, true
}

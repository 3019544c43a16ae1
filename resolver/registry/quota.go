package registry

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// defaultQuotaForNodes is the share of a quota that is left to the nodes.
	defaultQuotaForNodes = 0.5
	// quotaFresh is how long a quota counts. Others use it too, so a HEAD request,
	// which does not count, asks for it again after that.
	quotaFresh = time.Minute
	// quotaWait is how long to wait, at most, before a GET is tried again for which too
	// little was left.
	quotaWait = 10 * time.Minute
	// maxQuota bounds what a registry may state.
	maxQuota = 1 << 30
	// dockerHub counts GET requests for manifests, and not HEAD requests
	// (https://docs.docker.com/docker-hub/usage/pulls/).
	dockerHub = "docker.io"
)

// quota is how many manifests a registry still gives to one credential. Docker Hub states
// it in the header fields of draft-ietf-httpapi-ratelimit-headers-07 and earlier.
type quota struct {
	// asking is held while the quota is asked for, so that only one request does.
	asking sync.Mutex

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

// quotas has the quota of each credential at each registry.
type quotas struct {
	// forNodes is the share of the limit that is not used.
	forNodes float64
	clock    clock.PassiveClock
	byLogin  *lru.Cache // loginKey: *quota
	mu       sync.Mutex
	left     *prometheus.GaugeVec
}

func newQuotas(forNodes float64, registry prometheus.LabelConstraint) *quotas {
	return &quotas{
		forNodes: forNodes, clock: clock.RealClock{}, byLogin: lru.New(maxTokens),
		left: prometheus.V2.NewGaugeVec(prometheus.GaugeVecOpts{
			GaugeOpts: prometheus.GaugeOpts{
				Name: "layerlocality_resolver_registry_quota_remaining",
				Help: "Requests for manifests that were left according to a registry with a quota (RateLimit-Remaining), in its last answer to any credential.",
			},
			VariableLabels: prometheus.ConstrainedLabels{{Name: "registry", Constraint: registry}},
		}),
	}
}

func (q *quotas) of(s *source, credential authn.AuthConfig) *quota {
	key := loginKey{s.challengeKey(), credential}
	q.mu.Lock()
	defer q.mu.Unlock()
	if known, ok := q.byLogin.Get(key); ok {
		return known.(*quota)
	}
	found := &quota{}
	q.byLogin.Add(key, found)
	return found
}

// unsure reports whether a registry that counts requests has to be asked how many are left.
// Of registries other than Docker Hub, the first answer shows whether they count.
func (q *quota) unsure(s *source, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.limit > 0 && now.Sub(q.at) >= max(q.window, quotaFresh) {
		q.heard, q.limit = false, 0 // another window has begun
	}
	if !q.heard {
		return s.domain == dockerHub
	}
	return q.limit > 0 && now.Sub(q.at) >= quotaFresh
}

// take counts a request that is about to be sent, or returns why too little is left for it.
func (q *quota) take(s *source, forNodes float64) *Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if keep := int(math.Ceil(forNodes * float64(q.limit))); q.limit > 0 && q.remaining-q.underWay <= keep {
		return &Error{
			Reason: v1alpha1.ReasonRateLimited, Host: s.domain, Busy: true, RetryAfter: max(time.Second, min(q.window, quotaWait)),
			Err: text(nil, "registry %s gives %d of %d manifests until it counts anew, and %d are kept for the nodes (--quota-for-nodes): a mirror in registries.conf, or an account with a higher limit, makes room",
				s.domain, q.remaining, q.limit, keep),
		}
	}
	q.underWay++
	return nil
}

// done ends what take began. A request that failed may have counted, without an answer that
// says so.
func (q *quota) done(failed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.underWay--
	if failed {
		q.remaining = max(0, q.remaining-1)
	}
}

// hear notes what an answer states. begun is when its request was sent: of answers that
// overtake each other, the lowest rest counts. An answer with what was asked for that states no
// quota ends an earlier one: there is another plan now, or only refusals state it.
func (q *quota) hear(code int, header http.Header, begun, now time.Time) (remaining int, stated bool) {
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
	window = quotaWait
	for _, part := range parts[1:] {
		if seconds, found := strings.CutPrefix(strings.TrimSpace(part), "w="); found {
			if w, err := strconv.ParseUint(seconds, 10, 31); err == nil {
				window = time.Duration(w) * time.Second
			}
		}
	}
	return min(int(n), maxQuota), window, true
}

// hearQuota notes what an answer of the registry itself states about the session's quota.
func (s *session) hearQuota(code int, header http.Header, begun time.Time) {
	all := s.client.quotas
	if left, ok := all.of(s.source, s.credential).hear(code, header, begun, all.clock.Now()); ok {
		all.left.WithLabelValues(s.source.domain).Set(float64(left))
	}
}

// takeQuota returns when a GET request may be sent. done has to be called after it.
func (s *session) takeQuota(ctx context.Context, identifier string) (done func(failed bool), err error) {
	all := s.client.quotas
	q := all.of(s.source, s.credential)
	if err := s.learnQuota(ctx, q, identifier); err != nil {
		return nil, err
	}
	if refused := q.take(s.source, all.forNodes); refused != nil {
		return nil, refused
	}
	return q.done, nil
}

// learnQuota asks how much is left, if that has to be known. What else the answer states is
// not used: the answer to the GET request has it again.
func (s *session) learnQuota(ctx context.Context, q *quota, identifier string) error {
	now := s.client.quotas.clock.Now
	if !q.unsure(s.source, now()) {
		return nil
	}
	q.asking.Lock()
	defer q.asking.Unlock()
	if !q.unsure(s.source, now()) {
		return nil
	}
	if _, err := s.ask(ctx, http.MethodHead, identifier); err != nil && (ctx.Err() != nil || temporary(asError(err).Reason)) {
		return err
	}
	return nil
}

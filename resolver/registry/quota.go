package registry

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/limits"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

const (
	// DefaultQuotaForNodes is the share of a quota that is left to the nodes.
	DefaultQuotaForNodes = 0.5
	// dockerHub counts GET requests for manifests, and not HEAD requests
	// (https://docs.docker.com/docker-hub/usage/pulls/).
	dockerHub = "docker.io"
)

// quotas has the quota of each credential at each registry.
type quotas struct {
	// forNodes is the share of the limit that is not used.
	forNodes float64
	clock    clock.PassiveClock
	byLogin  *lru.Cache // loginKey: *limits.Quota
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

func (q *quotas) of(s *source, credential authn.AuthConfig) *limits.Quota {
	key := loginKey{s.challengeKey(), credential}
	q.mu.Lock()
	defer q.mu.Unlock()
	if known, ok := q.byLogin.Get(key); ok {
		return known.(*limits.Quota)
	}
	found := &limits.Quota{}
	q.byLogin.Add(key, found)
	return found
}

// hearQuota notes what an answer of the registry itself states about the session's quota.
func (s *session) hearQuota(code int, header http.Header, begun time.Time) {
	all := s.client.quotas
	if left, ok := all.of(s.source, s.credential).Hear(code, header, begun, all.clock.Now()); ok {
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
	if short := q.Take(all.forNodes); short != nil {
		return nil, &Error{
			Reason: v1alpha1.ReasonRateLimited, Host: s.source.domain, Busy: true, RetryAfter: short.After,
			Err: text(nil, "registry %s gives %d of %d manifests until it counts anew, and %d are kept for the nodes (--quota-for-nodes): a mirror in registries.conf, or an account with a higher limit, makes room",
				s.source.domain, short.Remaining, short.Limit, short.Kept),
		}
	}
	return q.Done, nil
}

// learnQuota asks how much is left, if that has to be known. What else the answer states is
// not used: the answer to the GET request has it again.
func (s *session) learnQuota(ctx context.Context, q *limits.Quota, identifier string) error {
	unsure := func() bool {
		return q.Unsure(policy.Canonical(s.source.domain) == dockerHub, s.client.quotas.clock.Now())
	}
	if !unsure() {
		return nil
	}
	q.Asking.Lock()
	defer q.Asking.Unlock()
	if !unsure() {
		return nil
	}
	if _, err := s.ask(ctx, http.MethodHead, identifier); err != nil && (ctx.Err() != nil || temporary(asError(err).Reason) && !refusesHead(asError(err).code)) {
		return err
	}
	return nil
}

package registry

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/limits"
)

// hub counts GET requests for manifests as Docker Hub does: each user has a quota, HEAD is
// free, and both are told what is left.
type hub struct {
	repository
	mu    sync.Mutex
	limit int
	// down means that it is in trouble, noHead that something before it does not let HEAD through.
	down, noHead bool
	// left by user; "" is everybody without one.
	left map[string]int
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/" {
		w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if h.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if h.noHead && r.Method == http.MethodHead {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	if strings.Contains(r.URL.Path, "/manifests/") {
		user, _, _ := r.BasicAuth()
		h.mu.Lock()
		enough := h.left[user] > 0
		if enough && r.Method == http.MethodGet {
			h.left[user]--
		}
		w.Header().Set("RateLimit-Limit", fmt.Sprintf("%d;w=21600", h.limit))
		w.Header().Set("RateLimit-Remaining", fmt.Sprintf("%d;w=21600", h.left[user]))
		h.mu.Unlock()
		if !enough {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
	}
	h.repository.ServeHTTP(w, r)
}

func (h *hub) remaining(user string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left[user]
}

// newHub serves n images as docker.io/team/app:0, ..., to a client that looks up docker.io
// here.
func newHub(t *testing.T, left, n int, options ...option) (*hub, *server, *world) {
	t.Helper()
	h := &hub{limit: 100, left: map[string]int{"": left, "ann": 100}}
	for i := range n {
		h.push("team/app", manifestType, manifestOf(layerOf(fmt.Sprint(i), 1)), fmt.Sprint(i))
	}
	s := listen(t, "127.0.0.1:0", "registry.test", false, h)
	w := newWorld(t, options...)
	w.transport.now.Load().verified.TLSClientConfig.ServerName = "registry.test"
	dial := w.transport.now.Load().verified.DialContext
	w.transport.now.Load().verified.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "index.docker.io:443" {
			address = s.host
		}
		return dial(ctx, network, address)
	}
	return h, s, w
}

// TestQuotaForNodes: of 100 requests that Docker Hub has left, half stay for the nodes, with
// several workers, and while nodes use some.
func TestQuotaForNodes(t *testing.T) {
	h, s, w := newHub(t, 100, 200)
	var work sync.WaitGroup
	images := make(chan int)
	var mu sync.Mutex
	resolved, refused := 0, 0
	for range 8 {
		work.Go(func() {
			for i := range images {
				_, err := w.Resolve(t.Context(), fmt.Sprintf("docker.io/team/app:%d", i), amd64, nil)
				mu.Lock()
				if err == nil {
					resolved++
				} else if refused++; refused == 1 {
					e := wantError(t, err, v1alpha1.ReasonRateLimited, "50 are kept for the nodes (--quota-for-nodes)")
					if !e.Busy || e.RetryAfter != limits.QuotaWait {
						t.Errorf("busy %v, again after %s: the queue of all others would wait, too", e.Busy, e.RetryAfter)
					}
				}
				mu.Unlock()
			}
		})
	}
	for i := range 200 {
		if i == 20 { // a node pulls
			h.mu.Lock()
			h.left[""] -= 10
			h.mu.Unlock()
		}
		images <- i
	}
	close(images)
	work.Wait()
	left := h.remaining("")
	// What is under way counts twice for a moment, at most once for each worker.
	if left < 50 || left > 57 || resolved != 90-left || refused != 110+left {
		t.Errorf("%d are left, %d resolved, %d refused", left, resolved, refused)
	}
	if got := s.take(); len(got) != 1+1+resolved {
		t.Errorf("%d requests, want a ping, a HEAD and %d GETs: %q", len(got), resolved, got)
	}
	for i := range 10 { // one after the other, to the last
		_, _ = w.Resolve(t.Context(), fmt.Sprintf("docker.io/team/app:%d", 190+i), amd64, nil)
	}

	// Another account has a quota of its own, and confirming a tag costs nothing.
	ann := login("docker.io", "ann", "s3cret")
	if _, err := w.Resolve(t.Context(), "docker.io/team/app:7", amd64, []authn.Keychain{ann}); err != nil {
		t.Error(err)
	}
	if _, err := w.Digest(t.Context(), "docker.io/team/app:7", nil); err != nil {
		t.Error(err)
	}
	if h.remaining("") != 50 || h.remaining("ann") != 99 {
		t.Errorf("%d and %d are left, want 50 and 99", h.remaining(""), h.remaining("ann"))
	}
}

// TestQuotaAtTheStart: where nodes have used their half and ours, nothing is requested that
// counts. With --quota-for-nodes=0 all of it is used.
func TestQuotaAtTheStart(t *testing.T) {
	h, s, w := newHub(t, 40, 1)
	_, err := w.Resolve(t.Context(), "docker.io/team/app:0", amd64, nil)
	wantError(t, err, v1alpha1.ReasonRateLimited, "40 of 100")
	wantRequests(t, s, "GET /v2/", "HEAD /v2/team/app/manifests/0")
	if h.remaining("") != 40 {
		t.Errorf("%d are left", h.remaining(""))
	}

	none := 0.0
	h, _, w = newHub(t, 1, 2, func(c *Config) { c.QuotaForNodes = &none })
	if _, err = w.Resolve(t.Context(), "docker.io/team/app:0", amd64, nil); err != nil {
		t.Error(err)
	}
	_, err = w.Resolve(t.Context(), "docker.io/team/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonRateLimited)
	if h.remaining("") != 0 {
		t.Errorf("%d are left", h.remaining(""))
	}
}

// TestQuotaWithoutHead: what refuses HEAD does not keep an image from being asked for.
func TestQuotaWithoutHead(t *testing.T) {
	h, s, w := newHub(t, 100, 1)
	h.noHead = true
	if _, err := w.Resolve(t.Context(), "docker.io/team/app:0", amd64, nil); err != nil {
		t.Error(err)
	}
	wantRequests(t, s, "GET /v2/", "HEAD /v2/team/app/manifests/0", "GET /v2/team/app/manifests/0")
}

// TestQuotaIsOld: nodes use it too, so that it is asked for again before the next request
// that counts.
func TestQuotaIsOld(t *testing.T) {
	h, s, w := newHub(t, 100, 3)
	clock := testingclock.NewFakePassiveClock(time.Now())
	w.quotas.clock = clock
	if _, err := w.Resolve(t.Context(), "docker.io/team/app:0", amd64, nil); err != nil {
		t.Fatal(err)
	}
	s.take()
	h.mu.Lock()
	h.left[""] = 50
	h.mu.Unlock()
	clock.SetTime(clock.Now().Add(limits.QuotaFresh))
	_, err := w.Resolve(t.Context(), "docker.io/team/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonRateLimited)
	wantRequests(t, s, "HEAD /v2/team/app/manifests/1")

	// The registry counts anew.
	h.mu.Lock()
	h.left[""] = 100
	h.mu.Unlock()
	clock.SetTime(clock.Now().Add(limits.QuotaFresh))
	if _, err := w.Resolve(t.Context(), "docker.io/team/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
	wantRequests(t, s, "HEAD /v2/team/app/manifests/1", "GET /v2/team/app/manifests/1")
}

// TestQuotaOfMirror: what a mirror has takes nothing of the quota.
func TestQuotaOfMirror(t *testing.T) {
	cache := &repository{}
	mirror := listen(t, "127.0.0.1:0", "mirror.test", false, cache)
	h, s, w := newHub(t, 60, 2, withConf(writeConf(t, fmt.Sprintf(`
[[registry]]
location = "docker.io"
[[registry.mirror]]
location = "%s/hub"
`, mirror.host))))
	cache.push("hub/team/app", manifestType, manifestOf(layerOf("0", 1)), "0")
	if _, err := w.Resolve(t.Context(), "docker.io/team/app:0", amd64, nil); err != nil {
		t.Error(err)
	}
	if got := s.take(); len(got) > 0 {
		t.Errorf("requests to Docker Hub: %q", got)
	}
	if _, err := w.Resolve(t.Context(), "docker.io/team/app:1", amd64, nil); err != nil || h.remaining("") != 59 {
		t.Errorf("error %v, %d are left", err, h.remaining(""))
	}
}

// TestNoQuota: a registry without a quota gets no other requests than before.
func TestNoQuota(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	w := newWorld(t)
	s := listen(t, "127.0.0.1:0", "registry.test", false, content)
	if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, nil); err != nil {
		t.Error(err)
	}
	wantRequests(t, s, "GET /v2/", "GET /v2/app/manifests/1")
	for _, share := range []float64{-0.1, 1.1, math.NaN()} {
		if _, err := New(Config{Policy: mustPolicy(t), QuotaForNodes: &share}); err == nil {
			t.Errorf("a share of %v is accepted", share)
		}
	}
	for _, share := range []float64{0, 1} {
		if _, err := New(Config{Policy: mustPolicy(t), QuotaForNodes: &share}); err != nil {
			t.Errorf("a share of %v: %v", share, err)
		}
	}
}

// A registry that cannot tell how much is left, because it is in trouble, is not asked for what
// may count.
func TestQuotaOfRegistryInTrouble(t *testing.T) {
	h, s, w := newHub(t, 100, 1)
	h.down = true
	_, err := w.Resolve(t.Context(), "docker.io/team/app:0", amd64, nil)
	wantError(t, err, v1alpha1.ReasonUnavailable)
	requests := s.take()
	if !slices.ContainsFunc(requests, func(r string) bool { return strings.HasPrefix(r, "HEAD /v2/team") }) ||
		slices.ContainsFunc(requests, func(r string) bool { return strings.HasPrefix(r, "GET /v2/team") }) {
		t.Errorf("requests %q", requests)
	}
}

package publish

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/layer-locality/layer-locality/agent/contents"
	"github.com/layer-locality/layer-locality/agent/handover"
	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/testkit"
)

var must = testkit.Must

// token returns a token with the claims.
func token(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

// token returns a token that is bound to a Node.
func (i Identity) token() string {
	return token(fmt.Sprintf(`{"kubernetes.io":{"node":{"name":%q,"uid":%q}}}`, i.Name, i.UID))
}

func TestIdentity(t *testing.T) {
	got, err := IdentityOf(token(`{"sub":"x","kubernetes.io":{"namespace":"kube-system","node":{"name":"n1","uid":"u1"},"pod":{"name":"p"}}}`))
	if err != nil || got != (Identity{"n1", "u1"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for text, why := range map[string]string{
		"": "not one of a service account", "a.b": "not one of a service account", "a.!.c": "not one of a service account",
		token("{"):  "claims",
		token(`{}`): "not bound to a node",
		token(`{"kubernetes.io":{"pod":{"name":"p","uid":"u"}}}`):   "not bound to a node",
		token(`{"kubernetes.io":{"node":{"name":"n1"}}}`):           "not bound to a node",
		token(`{"kubernetes.io":{"node":{"name":"","uid":"u1"}}}`):  "not bound to a node",
		token(`{"kubernetes.io":{"node":{"name":[1],"uid":"u1"}}}`): "claims",
	} {
		if got, err := IdentityOf(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	if _, err := TokenIn(file); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	must(t, os.WriteFile(file, []byte("a.b.c\n"), 0o600))
	if got, err := TokenIn(file); got != "a.b.c" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// apiserver keeps one object, and fails on demand.
type apiserver struct {
	t  *testing.T
	mu sync.Mutex
	// away means that nothing answers.
	away bool
	// fail answers a request in place of the apiserver if it returns a status.
	fail    func(r *http.Request, size int) (status int, header http.Header)
	object  *v1alpha1.NodeLayers
	version int
	// writes are the times of successful writes, requests all of them as METHOD STATUS.
	writes   []time.Time
	requests []string
}

func (a *apiserver) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		a.requests = append(a.requests, r.Method+" away")
		return nil, errors.New("connection refused")
	}
	recorder := httptest.NewRecorder()
	a.serve(recorder, r)
	response := recorder.Result()
	response.Request = r
	a.requests = append(a.requests, fmt.Sprint(r.Method, " ", response.StatusCode))
	return response, nil
}

func (a *apiserver) serve(w http.ResponseWriter, r *http.Request) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	status := func(code int, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
	}
	if a.fail != nil {
		if code, header := a.fail(r, len(body)); code != 0 {
			for key := range header {
				w.Header().Set(key, header.Get(key))
			}
			http.Error(w, http.StatusText(code), code)
			return
		}
	}
	const path = "/apis/layerlocality.io/v1alpha1/nodelayers"
	object := &v1alpha1.NodeLayers{}
	if r.Method != http.MethodDelete {
		if err := json.Unmarshal(body, object); err != nil {
			a.t.Error(err)
		}
		// As the policy does.
		identity, err := IdentityOf(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if err != nil || object.Name != identity.Name || object.OwnerReferences[0].UID != identity.UID {
			a.t.Errorf("%+v writes %s of %+v, %v", identity, object.Name, object.OwnerReferences, err)
		}
	}
	switch {
	case r.URL.Path != path && r.URL.Path != path+"/n1", (r.URL.Path == path) != (r.Method == http.MethodPost):
		a.t.Errorf("%s %s", r.Method, r.URL)
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method != http.MethodPost && a.object == nil:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodPost && a.object != nil:
		status(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method == http.MethodPut && object.ResourceVersion != a.object.ResourceVersion:
		status(http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	answer := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
	if r.Method == http.MethodDelete {
		a.object = nil
	} else {
		a.version++
		object.ResourceVersion = fmt.Sprint(a.version)
		a.object, answer.ObjectMeta = object, object.ObjectMeta
		a.writes = append(a.writes, time.Now())
	}
	if accept := r.Header.Get("Accept"); accept != onlyMetadata {
		a.t.Errorf("%s accepts %q", r.Method, accept)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		a.t.Error(err)
	}
}

// now calls f while nothing is requested.
func (a *apiserver) now(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// suite is a Publisher that runs, with the reader before it.
type suite struct {
	t        *testing.T
	server   *apiserver
	writer   *handover.Writer
	registry *prometheus.Registry
	p        *Publisher
	identity Identity
	// events are those of the folder: inotify belongs to no bubble of synctest.
	events chan struct{}
	// delays is the sum of those that delay has seen.
	delays float64
}

// start starts a Publisher.
func start(ctx context.Context, t *testing.T) *suite {
	t.Helper()
	folder := t.TempDir()
	s := &suite{
		t: t, server: &apiserver{t: t}, writer: handover.NewWriter(folder), registry: prometheus.NewRegistry(),
		identity: Identity{"n1", "u1"}, events: make(chan struct{}),
	}
	p, err := New(Options{
		Config: &rest.Config{Host: "https://apiserver.example", Transport: s.server},
		Token:  func() (string, error) { return s.identity.token(), nil },
		From:   handover.NewReader(folder), Renew: 10 * time.Minute, Spread: 30 * time.Second, Registerer: s.registry,
	})
	must(t, err)
	s.p = p
	go func() {
		if err := p.run(ctx, s.events); err != nil {
			t.Error(err)
		}
	}()
	return s
}

// finds has the reader find images.
func (s *suite) finds(images ...string) {
	s.t.Helper()
	spec := &v1alpha1.NodeLayersSpec{Runtime: "test", Reuse: v1alpha1.ReuseByDigest, TotalImages: int32(len(images)), Images: images}
	must(s.t, s.writer.WriteReport(&handover.Report{Spec: spec, Changed: time.Now()}))
	s.beats()
}

// beats has the reader hand over that it works.
func (s *suite) beats() {
	s.t.Helper()
	must(s.t, s.writer.WriteState(&handover.State{Read: time.Now(), Pulls: 2, Errors: map[string]int64{"watch": 4}}))
}

// later lets time pass, in which the reader works.
func (s *suite) later(d time.Duration) {
	s.t.Helper()
	for ; d > 0; d -= min(d, time.Minute) {
		s.beats()
		time.Sleep(min(d, time.Minute))
	}
	synctest.Wait()
}

// expect checks the images in the apiserver, and how often they were written so far.
func (s *suite) expect(what string, writes int, images ...string) {
	s.t.Helper()
	s.server.now(func() {
		var got []string
		if s.server.object != nil {
			got = s.server.object.Spec.Images
		}
		if !slices.Equal(got, images) || len(s.server.writes) != writes {
			s.t.Errorf("%s: %q after %d writes, want %q after %d; %q", what, got, len(s.server.writes), images, writes, s.server.requests)
		}
	})
}

// delay returns the metric's value for the changes that were written since it was last asked.
func (s *suite) delay() time.Duration {
	s.t.Helper()
	families, err := s.registry.Gather()
	must(s.t, err)
	for _, family := range families {
		if family.GetName() == "layerlocality_agent_write_delay_seconds" {
			before := s.delays
			s.delays = family.GetMetric()[0].GetHistogram().GetSampleSum()
			return time.Duration((s.delays - before) * float64(time.Second)).Round(time.Millisecond) // sums of floats
		}
	}
	s.t.Fatal("there is no such metric")
	return 0
}

func test(t *testing.T, f func(s *suite)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f(start(ctx, t))
		cancel()
		synctest.Wait()
	})
}

func TestPublish(t *testing.T) {
	test(t, func(s *suite) {
		s.later(time.Minute)
		s.expect("nothing was found yet", 0)
		if err := s.p.Ready(); err == nil {
			t.Error("ready before anything was written")
		}
		s.finds("- a")
		s.later(time.Minute)
		s.expect("found", 1, "- a")
		must(t, s.p.Ready())
		s.server.now(func() {
			o := s.server.object
			want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}}
			if o.Name != "n1" || !reflect.DeepEqual(o.OwnerReferences, want) || o.Spec.RenewSeconds != 600 || o.Spec.RenewTime.IsZero() || o.Spec.TotalImages != 1 {
				t.Errorf("%+v", o)
			}
			if !slices.Equal(s.server.requests, []string{"POST 200"}) {
				t.Errorf("%q", s.server.requests)
			}
		})
		s.finds("- a")
		s.later(8 * time.Minute)
		s.expect("nothing has changed", 1, "- a")
		s.later(3 * time.Minute)
		s.expect("renewed", 2, "- a")
		s.finds("- a", "- b")
		s.later(time.Minute)
		s.expect("changed", 3, "- a", "- b")
		if err := testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP layerlocality_agent_writes_total NodeLayers written, because of a change or to renew them.
# TYPE layerlocality_agent_writes_total counter
layerlocality_agent_writes_total{why="change"} 2
layerlocality_agent_writes_total{why="renewal"} 1
# HELP layerlocality_agent_errors_total Failures, by what failed (reader: reading the runtime; write: writing to the apiserver; handover: between the two containers) and why.
# TYPE layerlocality_agent_errors_total counter
layerlocality_agent_errors_total{in="reader",reason="handover"} 0
layerlocality_agent_errors_total{in="reader",reason="read"} 0
layerlocality_agent_errors_total{in="reader",reason="watch"} 4
# HELP layerlocality_agent_images Images of the node.
# TYPE layerlocality_agent_images gauge
layerlocality_agent_images 2
# HELP layerlocality_agent_object_bytes Bytes of the lists in the NodeLayers last written, as JSON.
# TYPE layerlocality_agent_object_bytes gauge
layerlocality_agent_object_bytes 12
# HELP layerlocality_agent_pulls Downloads of layers that were going on at the last reading; only known with containerd.
# TYPE layerlocality_agent_pulls gauge
layerlocality_agent_pulls 2
`), "layerlocality_agent_writes_total", "layerlocality_agent_errors_total", "layerlocality_agent_images", "layerlocality_agent_object_bytes", "layerlocality_agent_pulls"); err != nil {
			t.Error(err)
		}
	})
}

// Where the node serves layers is written when it changes, with what the node holds.
func TestPeer(t *testing.T) {
	test(t, func(s *suite) {
		peer := &v1alpha1.NodePeer{Address: "10.0.0.1:9451", Keys: []string{strings.Repeat("a", 64)}}
		expect := func(want *v1alpha1.NodePeer) {
			t.Helper()
			s.server.now(func() {
				if got := s.server.object.Spec.Peer; !reflect.DeepEqual(got, want) {
					t.Errorf("%+v, want %+v", got, want)
				}
			})
		}
		s.finds("- a")
		s.later(time.Minute)
		s.expect("none", 1, "- a")
		expect(nil)
		must(t, s.writer.WritePeer(peer))
		s.later(time.Minute)
		s.expect("one", 2, "- a")
		expect(peer)
		peer.Keys = append(peer.Keys, strings.Repeat("b", 64))
		must(t, s.writer.WritePeer(peer))
		s.later(time.Minute)
		s.expect("another key", 3, "- a")
		expect(peer)
		s.later(5 * time.Minute)
		s.expect("nothing has changed", 3, "- a")
		peer.Address = "metadata.internal:80"
		must(t, s.writer.WritePeer(peer))
		s.later(time.Minute)
		s.expect("an address that is none", 4, "- a")
		expect(nil)
		s.finds("- a", "- b")
		s.later(time.Minute)
		s.expect("all else is written", 5, "- a", "- b")
	})
}

// Writes keep their distance however often something changes.
func TestSpacing(t *testing.T) {
	test(t, func(s *suite) {
		for i := range 120 {
			s.finds(fmt.Sprintf("- image-%d", i))
			s.events <- struct{}{}
			time.Sleep(500 * time.Millisecond)
		}
		s.later(10 * time.Second)
		s.server.now(func() {
			if n := len(s.server.writes); n < 7 || n > 13 {
				t.Errorf("%d writes in a minute", n)
			}
			for i := 1; i < len(s.server.writes); i++ {
				if gap := s.server.writes[i].Sub(s.server.writes[i-1]); gap < spacing {
					t.Errorf("two writes within %v", gap)
				}
			}
		})
		s.server.now(func() {
			if got := s.server.object.Spec.Images; !slices.Equal(got, []string{"- image-119"}) {
				t.Errorf("%q", got)
			}
		})
	})
}

// Agents that start together do not write together.
func TestSpread(t *testing.T) {
	var first []time.Duration
	for range 30 {
		test(t, func(s *suite) {
			began := time.Now()
			s.finds("- a")
			s.events <- struct{}{}
			s.later(time.Minute)
			s.server.now(func() { first = append(first, s.server.writes[0].Sub(began)) })
		})
	}
	if least, most := slices.Min(first), slices.Max(first); most-least < 15*time.Second || most > 50*time.Second {
		t.Errorf("first writes after %v to %v", least, most)
	}
}

// The report of a silent reader grows old, so that others see it.
func TestSilentReader(t *testing.T) {
	test(t, func(s *suite) {
		s.finds("- a")
		s.later(time.Minute)
		s.expect("at first", 1, "- a")
		time.Sleep(time.Hour)
		synctest.Wait()
		s.expect("silent", 1, "- a")
		if err := s.p.Ready(); err == nil || !strings.Contains(err.Error(), "has not been read since") {
			t.Error(err)
		}
		s.later(time.Minute)
		s.expect("it works again", 2, "- a")
		must(t, s.p.Ready())
	})
}

// A report that cannot be read is none: a reader's state alone renews nothing.
func TestUnreadableReport(t *testing.T) {
	test(t, func(s *suite) {
		s.finds("- a")
		s.later(time.Minute)
		s.expect("at first", 1, "- a")
		report := filepath.Join(s.p.From.Folder(), "report.json")
		must(t, os.WriteFile(report+".new", []byte("{}"), 0o600))
		must(t, os.Rename(report+".new", report)) // another file: its time may be that of the one before
		s.later(4 * time.Minute)
		must(t, s.p.Ready())
		s.later(time.Hour)
		s.expect("it cannot be read", 1, "- a")
		if err := s.p.Ready(); err == nil || !strings.Contains(err.Error(), "has not been read since") {
			t.Error(err)
		}
		if n := testutil.ToFloat64(s.p.metrics.errors.WithLabelValues("handover", "report")); n < 10 {
			t.Errorf("%v errors", n)
		}
		s.finds("- b")
		s.later(time.Minute)
		s.expect("it can be read", 2, "- b")
		must(t, s.p.Ready())
	})
}

// Failures of the apiserver, each until it works again.
func TestFailures(t *testing.T) {
	code := func(code int, header http.Header) func(*http.Request, int) (int, http.Header) {
		return func(*http.Request, int) (int, http.Header) { return code, header }
	}
	for name, c := range map[string]struct {
		fail   func(*http.Request, int) (int, http.Header)
		reason string
		// most requests in ten minutes, and how long it may take afterwards.
		most  int
		after time.Duration
	}{
		"too many requests": {code(http.StatusTooManyRequests, http.Header{"Retry-After": {"200"}}), "TooManyRequests", 5, 5 * time.Minute},
		"for a day":         {code(http.StatusTooManyRequests, http.Header{"Retry-After": {"86400"}}), "TooManyRequests", 4, 7 * time.Minute},
		"unavailable":       {code(http.StatusServiceUnavailable, nil), "ServiceUnavailable", 14, 7 * time.Minute},
		"forbidden":         {code(http.StatusForbidden, nil), "Forbidden", 14, 7 * time.Minute},
		"no resource":       {code(http.StatusNotFound, nil), "NotFound", 40, 7 * time.Minute},
	} {
		test(t, func(s *suite) {
			s.server.now(func() { s.server.fail = c.fail })
			s.finds("- a")
			s.later(10 * time.Minute)
			s.expect(name, 0)
			s.server.now(func() {
				if n := len(s.server.requests); n < 2 || n > c.most {
					t.Errorf("%s: %d requests in ten minutes, want 2 to %d", name, n, c.most)
				}
				s.server.fail = nil
			})
			if n := testutil.ToFloat64(s.p.metrics.errors.WithLabelValues("write", c.reason)); n < 2 {
				t.Errorf("%s: %v errors with that reason", name, n)
			}
			s.later(c.after)
			s.expect(name+" no more", 1, "- a")
		})
	}
}

// A process that begins with an old report did not need days to write it.
func TestDelayOfAnOldReport(t *testing.T) {
	test(t, func(s *suite) {
		spec := &v1alpha1.NodeLayersSpec{Runtime: "test", Reuse: v1alpha1.ReuseByDigest, TotalImages: 1, Images: []string{"- a"}}
		must(t, s.writer.WriteReport(&handover.Report{Spec: spec, Changed: time.Now().Add(-72 * time.Hour)}))
		s.later(2 * time.Minute)
		s.expect("the old report", 1, "- a")
		if d := s.delay(); d != 0 {
			t.Errorf("it took %s", d)
		}
		s.finds("- b")
		s.later(2 * time.Minute)
		s.expect("a change", 2, "- b")
		if d := s.delay(); d <= 0 || d > time.Minute {
			t.Errorf("it took %s", d)
		}
	})
}

// An apiserver that cannot be reached for minutes is tried again, less and less often; then the
// object is what the node holds by then.
func TestApiserverAway(t *testing.T) {
	test(t, func(s *suite) {
		s.finds("- a")
		s.later(time.Minute)
		s.server.now(func() { s.server.away = true })
		s.delay() // of the first write
		noticed := time.Now()
		s.finds("- a", "- b")
		s.later(3 * time.Minute)
		s.finds("- c")
		s.later(2 * time.Minute)
		s.expect("away", 1, "- a")
		s.server.now(func() {
			if n := len(s.server.requests); n < 5 || n > 15 {
				t.Errorf("%d requests: %q", n, s.server.requests)
			}
			s.server.away = false
		})
		if n := testutil.ToFloat64(s.p.metrics.errors.WithLabelValues("write", "other")); n < 3 {
			t.Errorf("%v errors", n)
		}
		s.later(7 * time.Minute) // the longest pause, and a quarter of it
		s.expect("back", 2, "- c")
		must(t, s.p.Ready())
		var waited time.Duration
		s.server.now(func() { waited = s.server.writes[1].Sub(noticed) })
		if took := s.delay(); (took - waited).Abs() > time.Millisecond {
			t.Errorf("the first change was written after %v, the metric has %v", waited, took)
		}
		s.finds("- d")
		s.later(time.Minute)
		s.expect("another change", 3, "- d")
		if took := s.delay(); took < settle || took > poll+settle+time.Second {
			t.Errorf("the metric has %v for a change without failures", took)
		}
	})
}

// A change is written a second after the reader noticed it, not a second after it was handed over.
// A reader with another clock, or none, changes that by a second at most.
func TestSettles(t *testing.T) {
	test(t, func(s *suite) {
		s.finds("- a")
		s.later(time.Minute)
		writes := 1
		s.expect("the first", writes, "- a")
		for _, c := range []struct{ ago, want time.Duration }{
			{700 * time.Millisecond, 300 * time.Millisecond}, {0, time.Second}, {time.Hour, 0}, {-time.Hour, time.Second},
		} {
			image := "- " + c.ago.String()
			handed := time.Now()
			must(t, s.writer.WriteReport(&handover.Report{Spec: &v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, Images: []string{image}}, Changed: handed.Add(-c.ago)}))
			s.beats()
			s.events <- struct{}{}
			s.later(5 * time.Second)
			writes++
			s.expect(image, writes, image)
			s.server.now(func() {
				if took := s.server.writes[writes-1].Sub(handed); (took - c.want).Abs() > 10*time.Millisecond {
					t.Errorf("noticed %v before it was handed over: written %v after that, want %v", c.ago, took, c.want)
				}
			})
			s.later(time.Minute)
		}
	})
}

// Two agents on one node, as while a DaemonSet is replaced by another one: they write no more
// often than each needs to, and the object is there.
func TestTwoAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := start(ctx, t)
		other, err := New(Options{
			Config: &rest.Config{Host: "https://apiserver.example", Transport: s.server}, Token: s.p.Token,
			From: handover.NewReader(s.p.From.Folder()), Renew: s.p.Renew, Spread: s.p.Spread, Registerer: prometheus.NewRegistry(),
		})
		must(t, err)
		go func() { _ = other.run(ctx, make(chan struct{})) }()
		s.finds("- a")
		s.later(time.Hour)
		s.server.now(func() {
			if n := len(s.server.writes); n < 10 || n > 14 {
				t.Errorf("%d writes in an hour by two agents that renew every 10 minutes", n)
			}
			if n := len(s.server.requests); n > 60 {
				t.Errorf("%d requests: %q", n, s.server.requests)
			}
		})
		s.finds("- b")
		s.later(time.Minute)
		s.server.now(func() {
			if got := s.server.object.Spec.Images; !slices.Equal(got, []string{"- b"}) {
				t.Errorf("%q", got)
			}
		})
		must(t, other.Ready())
		cancel()
		synctest.Wait()
	})
}

// Of 10,000 images, all are handed over and counted, and the object has what fits.
func TestTenThousandImages(t *testing.T) {
	test(t, func(s *suite) {
		const n = 10_000
		digest := func(i int) string { return fmt.Sprintf("sha256:%064x", i) }
		var held contents.Contents
		for i := range n {
			image := contents.Image{Names: []string{fmt.Sprintf("registry.example.com/team/app-%d:v1", i), digest(1_000_000 + i)}}
			for l := range 10 {
				image.Layers = append(image.Layers, v1alpha1.ImageLayer{Digest: digest(i%100*10 + l%5 + 100_000*(l/5)*i), Size: 2 << 20})
			}
			held.Images = append(held.Images, image)
		}
		must(t, s.writer.WriteReport(&handover.Report{Spec: held.Spec(0, v1alpha1.MaxNodeListBytes), Changed: time.Now()}))
		s.later(time.Minute)
		s.server.now(func() {
			if s.server.object == nil {
				t.Fatalf("nothing was written: %q", s.server.requests)
			}
			spec := s.server.object.Spec
			size := 0
			for _, text := range append(slices.Clone(spec.Images), spec.Layers...) {
				size += len(text) + 3
			}
			if spec.TotalImages != n || len(spec.Images) < 100 || size > v1alpha1.MaxNodeListBytes {
				t.Errorf("%d of %d images in %d bytes", len(spec.Images), spec.TotalImages, size)
			}
		})
	})
}

// What the apiserver finds too large gets smaller until it fits.
func TestTooLarge(t *testing.T) {
	test(t, func(s *suite) {
		s.server.now(func() {
			s.server.fail = func(_ *http.Request, size int) (int, http.Header) {
				if size > 20_000 {
					return http.StatusRequestEntityTooLarge, nil
				}
				return 0, nil
			}
		})
		var images []string
		for i := range 500 {
			images = append(images, fmt.Sprintf("- registry.example.com/a-team-with-a-long-name/and-long-names-of-images/%04d:v1", i))
		}
		s.finds(images...)
		s.later(2 * time.Minute)
		s.server.now(func() {
			if s.server.object == nil || len(s.server.object.Spec.Images) < 100 || s.server.object.Spec.TotalImages != 500 {
				t.Errorf("%q", s.server.requests)
			}
		})
		if left := testutil.ToFloat64(s.p.metrics.left); left < 100 || left > 400 {
			t.Errorf("%v images left out", left)
		}
		// It is tried in full from time to time, and not often.
		refused := func() int {
			s.server.mu.Lock()
			defer s.server.mu.Unlock()
			return len(slices.DeleteFunc(slices.Clone(s.server.requests), func(r string) bool { return !strings.HasSuffix(r, " 413") }))
		}
		before := refused()
		s.later(5 * time.Hour)
		if n := refused() - before; n < 4 || n > 20 {
			t.Errorf("it was too large %d times in five hours", n)
		}
		s.server.now(func() { s.server.fail = nil })
		s.later(90 * time.Minute)
		s.server.now(func() {
			if n := len(s.server.object.Spec.Images); n != 500 {
				t.Errorf("%d of 500 images are in the object that may be large again", n)
			}
		})
	})
}

// What is too large however small it gets is not tried again and again.
func TestAlwaysTooLarge(t *testing.T) {
	test(t, func(s *suite) {
		s.server.now(func() {
			s.server.fail = func(*http.Request, int) (int, http.Header) {
				return http.StatusRequestEntityTooLarge, nil
			}
		})
		s.finds("- a")
		s.later(10 * time.Minute)
		s.server.now(func() {
			if n := len(s.server.requests); n < 5 || n > 50 {
				t.Errorf("%d requests in ten minutes", n)
			}
			s.server.fail = nil
		})
		s.later(7 * time.Minute)
		s.expect("it takes it", 1, "- a")
	})
}

// Who cannot write for long is not ready, with the reason.
func TestReady(t *testing.T) {
	test(t, func(s *suite) {
		s.finds("- a")
		s.later(time.Minute)
		must(t, s.p.Ready())
		s.server.now(func() {
			s.server.fail = func(*http.Request, int) (int, http.Header) { return http.StatusForbidden, nil }
		})
		s.finds("- a", "- b")
		s.later(4 * time.Minute)
		must(t, s.p.Ready())
		s.later(3 * time.Minute)
		if err := s.p.Ready(); err == nil || !strings.Contains(err.Error(), "nothing could be written since") || !strings.Contains(err.Error(), "orbidden") {
			t.Error(err)
		}
		s.server.now(func() { s.server.fail = nil })
		s.later(6 * time.Minute)
		must(t, s.p.Ready())
		s.expect("it may write again", 2, "- a", "- b")
	})
}

// The clock of the node is set: the reader counts as what it is all the same.
func TestClockIsSet(t *testing.T) {
	test(t, func(s *suite) {
		off := func(d time.Duration) {
			must(t, s.writer.WriteState(&handover.State{Read: time.Now().Add(d)}))
		}
		s.finds("- a")
		s.later(time.Minute)
		// An hour ahead, once; then the reader is silent.
		off(time.Hour)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if err := s.p.Ready(); err == nil {
			t.Error("a silent reader counts, because its clock was ahead")
		}
		// An hour back, and it works.
		for range 5 {
			off(-time.Hour)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		must(t, s.p.Ready())
	})
	// What was read long before this process began does not count.
	p := &Publisher{}
	p.noteRead(time.Now().Add(-time.Hour), time.Now())
	if age := p.readAge(); age < 3600 {
		t.Errorf("read %v s ago", age)
	}
}

// A watcher goes on after an error: as many as come are taken.
func TestFollow(t *testing.T) {
	events, failures, handedOver := make(chan fsnotify.Event), make(chan error), make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		follow(events, failures, handedOver)
		close(done)
	}()
	for range 100 {
		failures <- fsnotify.ErrEventOverflow
	}
	<-handedOver // something may have been lost
	events <- fsnotify.Event{}
	<-handedOver
	close(events)
	<-done
}

// Whatever a reader hands over, it makes no labels.
func TestReasonsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := newMetrics(registry, func() float64 { return 0 })
	state := &handover.State{Errors: map[string]int64{handover.WatchFailed: 2}, Skipped: map[string]int{handover.NoLayers: 3}}
	for i := range 1000 {
		state.Errors[fmt.Sprint("reason-", i)], state.Skipped[fmt.Sprint("reason-", i)] = 1, 1
	}
	for range 2 { // counters count once
		m.read(state)
		for text, got := range map[string]float64{
			"errors 2": testutil.ToFloat64(m.errors.WithLabelValues("reader", handover.WatchFailed)), "other errors 1000": testutil.ToFloat64(m.errors.WithLabelValues("reader", "other")),
			"skipped 3": testutil.ToFloat64(m.skipped.WithLabelValues(handover.NoLayers)), "other skipped 1000": testutil.ToFloat64(m.skipped.WithLabelValues("other")),
		} {
			if !strings.HasSuffix(text, fmt.Sprint(" ", got)) {
				t.Errorf("%v, want %s", got, text)
			}
		}
	}
	if n := testutil.CollectAndCount(m.errors) + testutil.CollectAndCount(m.skipped); n != 10 { // with those of the reasons that did not occur
		t.Errorf("%d series", n)
	}
}

// What a reader hands over that is not valid in a NodeLayers is not sent; what it hands over next is.
func TestInvalidReport(t *testing.T) {
	const title = "\x1b]0;title\x07"
	for name, spec := range map[string]*v1alpha1.NodeLayersSpec{
		"an image":  {Reuse: v1alpha1.ReuseByDigest, Images: []string{"- a" + title}},
		"a runtime": {Reuse: v1alpha1.ReuseByDigest, Images: []string{"- a"}, Runtime: title},
		"a total":   {Reuse: v1alpha1.ReuseByDigest, Images: []string{"- a"}, TotalBytes: -1},
	} {
		test(t, func(s *suite) {
			must(t, s.writer.WriteReport(&handover.Report{Spec: spec, Changed: time.Now()}))
			s.later(10 * time.Minute)
			s.expect(name, 0)
			s.server.now(func() {
				if len(s.server.requests) > 0 {
					t.Errorf("%s: %q", name, s.server.requests)
				}
			})
			s.p.mu.Lock()
			err := s.p.failure
			s.p.mu.Unlock()
			if err == nil || !strings.Contains(err.Error(), untrusted) || strings.ContainsAny(err.Error(), title[:1]+title[len(title)-1:]) {
				t.Errorf("%s: %v", name, err)
			}
			s.finds("- b")
			s.later(2 * lastRetry) // with the spread of retries
			s.expect("after "+name, 1, "- b")
		})
	}
}

// The object is deleted, is written by somebody else, and the Node is made again.
func TestObjectChanges(t *testing.T) {
	test(t, func(s *suite) {
		s.finds("- a")
		s.later(time.Minute)
		s.expect("at first", 1, "- a")
		s.server.now(func() { s.server.object = nil })
		s.finds("- b")
		s.later(time.Minute)
		s.expect("after it was deleted", 2, "- b")
		if n := testutil.CollectAndCount(s.p.metrics.errors); n != 3 { // those of the reader
			t.Errorf("%d kinds of errors: a deleted object is no failure", n)
		}
		// An agent may not read, so what somebody else wrote goes first.
		requests := func(what string, want ...string) {
			t.Helper()
			if got := s.server.requests[len(s.server.requests)-len(want):]; !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		s.server.now(func() { s.server.object.ResourceVersion = "of somebody else" })
		s.finds("- c")
		s.later(time.Minute)
		s.expect("after somebody wrote it", 3, "- c")
		s.server.now(func() { requests("after somebody wrote it", "PUT 409", "POST 409", "DELETE 200", "POST 200") })
		// What may have been written although no answer came is not replaced without need.
		s.server.now(func() {
			s.server.fail = func(*http.Request, int) (int, http.Header) { return http.StatusServiceUnavailable, nil }
		})
		s.finds("- d")
		s.later(30 * time.Second)
		s.server.now(func() { s.server.fail = nil })
		s.later(2 * time.Minute)
		s.expect("after it was unavailable", 4, "- d")
		s.server.now(func() { requests("after it was unavailable", "PUT 503", "PUT 200") })
		s.server.now(func() { s.server.object = nil; s.identity.UID = "u2" })
		s.later(11 * time.Minute)
		s.expect("after the Node was made again", 5, "- d")
		s.server.now(func() {
			if uid := s.server.object.OwnerReferences[0].UID; uid != "u2" {
				t.Errorf("it is of the Node %s", uid)
			}
		})
	})
}

// With inotify, nobody waits for the next look at the folder.
func TestWatchesFolder(t *testing.T) {
	folder := t.TempDir()
	w := handover.NewWriter(folder)
	must(t, w.WriteState(&handover.State{Read: time.Now()}))
	server := &apiserver{t: t}
	p, err := New(Options{
		Config: &rest.Config{Host: "https://apiserver.example", Transport: server}, Token: func() (string, error) { return Identity{"n1", "u1"}.token(), nil },
		From: handover.NewReader(folder), Renew: time.Hour, Registerer: prometheus.NewRegistry(),
	})
	must(t, err)
	p.look = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	within := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not %s in a minute", what)
			}
		}
	}
	within("looked at", func() bool { return p.readAge() >= 0 })
	must(t, w.WriteReport(&handover.Report{Spec: &v1alpha1.NodeLayersSpec{Reuse: v1alpha1.ReuseByDigest, Images: []string{"- a"}}, Changed: time.Now()}))
	within("written", func() bool { return p.Ready() == nil })
	cancel()
	must(t, <-done)
}

//go:build e2e

package resolver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/addons"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/scenario"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
	v1 "github.com/layer-locality/layer-locality/scheduler/apis/config/v1"
)

// fault is a faulty registry.
type fault struct {
	name string
	// reason of the condition; empty if images are resolved.
	reason, message string
	// log is in the resolver's log, for a failure that has no object and is only an event of
	// the workload.
	log string
	// answer handles requests for manifests; all other requests go to a real
	// registry. Nil means that nothing listens.
	answer http.HandlerFunc
	// byDigest means that images are named by digests that no manifest has.
	byDigest bool
	// retry is the minimum time until the registry is asked again.
	retry time.Duration
}

var faults = []fault{
	{name: "none", answer: through},
	{name: "down", reason: v1alpha1.ReasonUnavailable, message: "cannot be reached"},
	{name: "slow (30 s)", reason: v1alpha1.ReasonUnavailable, message: "no complete answer in time", answer: func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(30 * time.Second):
			through(w, r)
		case <-r.Context().Done():
		}
	}},
	{name: "429, Retry-After", reason: v1alpha1.ReasonRateLimited, message: "to come back in 2m0s", retry: 110 * time.Second, answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	}},
	{name: "500", reason: v1alpha1.ReasonUnavailable, message: "500 Internal Server Error", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}},
	{name: "body cut off", reason: v1alpha1.ReasonUnavailable, message: "before the answer was complete", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"schemaVersion":2,`)
		panic(http.ErrAbortHandler)
	}},
	{name: "wrong digest", reason: v1alpha1.ReasonInvalidManifest, message: "has not the digest", byDigest: true, answer: manifest(1, 0)},
	{name: "manifest of 5 MiB", reason: v1alpha1.ReasonInvalidManifest, message: "more than 4194304 bytes", answer: manifest(1, 5<<20)},
	{name: "10,000 layers", reason: v1alpha1.ReasonInvalidManifest, message: "more than 512 layers", answer: manifest(10_000, 0)},
	{name: "redirect to loopback", reason: v1alpha1.ReasonDenied, message: "may not ask this registry", log: "address 127.0.0.1", answer: func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:2379"+r.URL.Path, http.StatusTemporaryRedirect) // where the control machine's etcd is
	}},
}

// manifest answers with a manifest with a number of layers, padded to a size.
func manifest(layers, size int) http.HandlerFunc {
	descriptor := func(media, content string, size int) map[string]any {
		return map[string]any{"mediaType": media, "digest": fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))), "size": size}
	}
	list := make([]map[string]any, layers)
	for i := range list {
		list[i] = descriptor("application/vnd.oci.image.layer.v1.tar+gzip", fmt.Sprint(i), i+1)
	}
	text, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor("application/vnd.oci.image.config.v1+json", "{}", 2), "layers": list,
	})
	if err != nil {
		panic(err)
	}
	if fill := size - len(text); fill > 0 {
		text = append(text, bytes.Repeat([]byte(" "), fill)...)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		_, _ = w.Write(text)
	}
}

// through passes a request on to the cluster's registry.
func through(w http.ResponseWriter, r *http.Request) {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.Registry().Address})
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	proxy.ServeHTTP(w, r)
}

func isManifest(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }

// TestFaults schedules pods whose registry is faulty, and compares the time with
// that for a healthy registry.
func TestFaults(t *testing.T) {
	const pods, tries = 7, 5
	// slack is for a busy machine. It is less than the time after which the resolver gives up
	// a registry that does not answer: a pod that waited for the registry would be noticed.
	const slack = 5 * time.Second
	for i := range pods + tries {
		pushSmall(t, fmt.Sprintf("faulty-%d:v1", i+1))
	}
	rows := [][]string{{"registry", "scheduled after (median)", "most", "with waitForManifest: " + wait.String(), "Resolved", "message"}}
	var healthy time.Duration
	for i, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			address := freeAddress(t)
			if fault.answer != nil {
				address = serve(t, func(w http.ResponseWriter, r *http.Request) {
					if isManifest(r) {
						fault.answer(w, r)
					} else {
						through(w, r)
					}
				})
			}
			references := make([]string, pods+tries)
			for j := range references {
				references[j] = fmt.Sprintf("%s/faulty-%d:v1", address, j+1)
				if fault.byDigest {
					references[j] = fmt.Sprintf("%s/faulty-%d@sha256:%x", address, j+1, sha256.Sum256([]byte(references[j])))
				}
			}
			name := fmt.Sprintf("fault-%d", i)
			durations := latencies(t, name, scenario.Pod{Scheduler: scenario.Layers}, references[:pods]...)
			// If a slow machine delays one, the next one shows how long a pod is held.
			held, asked := time.Hour, references[:pods]
			for held > wait+slack && len(asked) < len(references) {
				asked = references[:len(asked)+1]
				held = min(held, latencies(t, fmt.Sprintf("%s-held-%d", name, len(asked)), scenario.Pod{Scheduler: patient}, references[len(asked)-1])[0])
			}

			median := durations[len(durations)/2]
			row := []string{fault.name, milliseconds(median), milliseconds(durations[len(durations)-1]), milliseconds(held), "True", ""}
			switch {
			case fault.reason == "":
				healthy = median
				must(t, lab.Resolved(t.Context(), asked...))
			case fault.log != "":
				row[4], row[5] = "no object", event(t, name+"-1")
				if !strings.Contains(row[5], "("+fault.reason+")") || !strings.Contains(row[5], fault.message) || strings.Contains(row[5], fault.log) {
					t.Errorf("event %q, want %s and %q, without %q", row[5], fault.reason, fault.message, fault.log)
				}
				logged(t, references[0], fault.log)
				if manifest, err := lab.Manifest(t.Context(), references[0]); err != nil || manifest != nil {
					t.Errorf("object %v, error %v: nothing is written about what is denied", manifest, err)
				}
			default:
				manifest, condition, err := lab.Failed(t.Context(), references[0], fault.reason)
				must(t, err)
				_, why, _ := strings.Cut(condition.Message, ": ")
				row[4], row[5] = "False "+condition.Reason, why
				if !strings.Contains(condition.Message, fault.message) {
					t.Errorf("message %q lacks %q", condition.Message, fault.message)
				}
				if retry := manifest.Status.RetryTime; retry == nil || retry.Sub(condition.LastTransitionTime.Time) < fault.retry-10*time.Second {
					t.Errorf("asked again at %v, not before %s", retry, fault.retry)
				}
			}
			rows = append(rows, row)
			if median > healthy+v1.DefaultWaitForManifest+slack {
				t.Errorf("pods are scheduled after %s, with a healthy registry after %s; they may be held for %s", median, healthy, v1.DefaultWaitForManifest)
			}
			if held > wait+slack {
				t.Errorf("a pod is scheduled after %s, it may be held for %s", held, wait)
			}
		})
	}
	livetest.Table(t, rows...)
}

// TestRedirect redirects requests that have a password. The resolver must not
// follow a redirect to a forbidden address, and must not send the password to an
// allowed one.
func TestRedirect(t *testing.T) {
	const node = "n1"
	// A pod on the node, so that the node also has an address in the pods'
	// network.
	removeAtEnd(t, "redirect")
	pushed := pushSmall(t, "redirect:v1")
	must(t, lab.Submit(t.Context(), scenario.Pod{Name: "redirect", Image: pushed.Reference, Node: node}))
	must(t, lab.Ready(t.Context(), "redirect"))
	pods := c.Node(node).PodCIDR
	there := listenOn(t, c.Node(node))
	allowed := net.JoinHostPort(c.Node(node).Address.String(), there.port)
	forbidden := net.JoinHostPort(pods.Addr().Next().String(), there.port)

	var mu sync.Mutex
	passwords := 0
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if given, secret, ok := r.BasicAuth(); !ok || given != user || secret != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="redirecting"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mu.Lock()
		passwords++
		mu.Unlock()
		to := allowed
		if strings.Contains(r.URL.Path, "forbidden") {
			to = forbidden
		}
		http.Redirect(w, r, "http://"+to+r.URL.Path, http.StatusTemporaryRedirect)
	})
	createSecret(t, metav1.NamespaceDefault, "redirect", address, password)
	ask := func(name, reason string) {
		pod := scenario.Pod{Name: name, Image: address + "/" + name + ":v1", PullSecret: "redirect"}
		announce(t, pod)
		note := event(t, name)
		t.Log(note)
		if !strings.Contains(note, "("+reason+")") || strings.Contains(note, forbidden) {
			t.Errorf("event %q, want the reason %s and no address", note, reason)
		}
	}

	ask("forbidden", v1alpha1.ReasonDenied)
	// What to do about it is for those who can.
	logged(t, address+"/forbidden:v1", "redirected to "+forbidden, "--allow-network")
	if found := there.requests(); len(found) > 0 {
		t.Errorf("%s was contacted: %v", forbidden, found)
	}
	mu.Lock()
	if passwords == 0 {
		t.Error("the registry itself was not given the password: nothing is shown")
	}
	mu.Unlock()

	// A redirect to an allowed address is followed, without the password.
	ask("allowed", v1alpha1.ReasonNotFound)
	there.expect(t, "/v2/allowed/manifests/v1")

	// The forbidden address was not contacted only because it is forbidden.
	restartResolver(t, func(s *cluster.Component) { s.Args = append(s.Args, "--allow-network="+pods.String()) })
	ask("forbidden-no-more", v1alpha1.ReasonNotFound)
	there.expect(t, "/v2/forbidden-no-more/manifests/v1")
}

// TestResolverKilled kills the resolver with SIGKILL in the middle of its work.
func TestResolverKilled(t *testing.T) {
	const count, before, workers = 40, 10, 8
	var mu sync.Mutex
	asked, killed := map[string]int{}, make(chan struct{})
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if isManifest(r) && r.UserAgent() == "layer-resolver" { // and not a node
			mu.Lock()
			asked[r.URL.Path]++
			wait := len(asked) > before
			mu.Unlock()
			if wait { // until the resolver has ended
				select {
				case <-killed:
				case <-r.Context().Done():
				}
			}
		}
		through(w, r)
	})
	references, paths := make([]string, count), make([]string, count)
	for i := range references {
		name := fmt.Sprintf("killed-%d", i+1)
		pushSmall(t, name+":v1")
		references[i], paths[i] = address+"/"+name+":v1", "/v2/"+name+"/manifests/v1"
	}
	announce(t, scenario.Pod{Name: "killed", Image: references[0]}, references[1:]...)

	known := map[string]bool{}
	must(t, scenario.Poll(t.Context(), func(ctx context.Context) error {
		for i, reference := range references {
			if manifest, err := lab.Manifest(ctx, reference); err != nil {
				return err
			} else if manifest != nil && manifest.Spec.Digest != "" {
				known[paths[i]] = true
			}
		}
		if len(known) < before {
			return fmt.Errorf("%d images resolved of the %d that the registry answers", len(known), before)
		}
		return nil
	}))
	must(t, c.Addon(addons.LayerResolver).Kill(t.Context()))
	close(killed)
	durations := latencies(t, "while-killed", scenario.Pod{Scheduler: scenario.Layers}, references[count-5:]...)
	t.Logf("killed when %d of %d images were resolved; meanwhile pods are scheduled after %s (median)", len(known), count, milliseconds(durations[len(durations)/2]))

	must(t, c.Addon(addons.LayerResolver).Start(t.Context()))
	must(t, lab.Resolved(t.Context(), references...))
	mu.Lock()
	defer mu.Unlock()
	total := 0
	for _, path := range paths {
		total += asked[path]
		if known[path] && asked[path] != 1 {
			t.Errorf("%s was known when the resolver was killed, and asked for %d times", path, asked[path])
		}
	}
	t.Logf("%d requests for %d images", total, count)
	if most := count + workers; total > most { // each had an open request
		t.Errorf("%d requests, at most %d are needed", total, most)
	}
}

// pushSmall pushes an image that no other test has.
func pushSmall(t *testing.T, name string) *images.Pushed {
	t.Helper()
	image, err := scenario.PushOnBase(t.Context(), c, name, images.Layer{Name: "small", Size: 1000}, 1000)
	must(t, err)
	return image
}

// latencies creates pods with the images, each after the one before has a node.
// It returns how long each took to get a node, the shortest first. The pods stay until
// the end of the test: on a busy machine the resolver may look at an image after its
// pod got a node, and it does not ask for images that nothing uses any more.
func latencies(t *testing.T, name string, pod scenario.Pod, references ...string) []time.Duration {
	t.Helper()
	names := scenario.Names(name, len(references))
	removeAtEnd(t, names...)
	pods, err := lab.Client.CoreV1().Pods(metav1.NamespaceDefault).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer pods.Stop()
	var durations []time.Duration
	for i, reference := range references {
		pod.Name, pod.Image = names[i], reference
		begin := time.Now()
		must(t, lab.Submit(t.Context(), pod))
		limit := time.After(time.Minute)
		for placed := false; !placed; {
			select {
			case event := <-pods.ResultChan():
				changed, ok := event.Object.(*corev1.Pod)
				placed = ok && changed.Name == pod.Name && changed.Spec.NodeName != ""
			case <-limit:
				t.Fatalf("pod %s of %s was not scheduled within a minute", pod.Name, reference)
			}
		}
		durations = append(durations, time.Since(begin))
	}
	slices.Sort(durations)
	return durations
}

// logged waits until a line of the resolver's log about an image has all texts.
func logged(t *testing.T, reference string, texts ...string) {
	t.Helper()
	must(t, scenario.Poll(t.Context(), func(context.Context) error {
		log, err := os.ReadFile(c.Addon(addons.LayerResolver).Log())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(log)) {
			lacks := func(text string) bool { return !strings.Contains(line, text) }
			if strings.Contains(line, reference) && !slices.ContainsFunc(texts, lacks) {
				return nil
			}
		}
		return fmt.Errorf("no line of the log about %s has %q", reference, texts)
	}))
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// restartResolver restarts the resolver with other settings, until the end of the
// test.
func restartResolver(t *testing.T, change func(*cluster.Component)) {
	t.Helper()
	before, err := c.Addon(addons.LayerResolver).Settings()
	must(t, err)
	t.Cleanup(func() {
		if err := c.Addon(addons.LayerResolver).Restart(context.Background(), func(s *cluster.Component) { *s = before }); err != nil {
			t.Error(err)
		}
	})
	must(t, c.Addon(addons.LayerResolver).Restart(t.Context(), change))
}

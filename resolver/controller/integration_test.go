//go:build integration

package controller

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/internal/controlplane"
	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/workloads"
)

var (
	plane  *controlplane.ControlPlane
	direct client.Client
	scheme = runtime.NewScheme()
)

func TestMain(m *testing.M) {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	ctrl.SetLogger(klog.NewKlogr())
	os.Exit(func() int {
		var err error
		if plane, err = controlplane.Start("../.."); err != nil {
			log.Print(err)
			return 1
		}
		defer func() {
			if err := plane.Stop(); err != nil {
				log.Print(err)
			}
		}()
		for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
			if err := add(scheme); err != nil {
				log.Print(err)
				return 1
			}
		}
		if direct, err = client.New(plane.Config, client.Options{Scheme: scheme}); err != nil {
			log.Print(err)
			return 1
		}
		return m.Run()
	}())
}

// world is a registry and a cluster of one namespace, for one test.
type world struct {
	t    *testing.T
	ctx  context.Context
	host string
	// others are registries that the resolver may ask besides.
	others []string
	// before answers a request instead of the registry if it returns true.
	before   atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	mu       sync.Mutex
	requests map[string]int // by method and path
	// resolver is the one that was started last.
	resolver *Resolver
}

func newWorld(t *testing.T) *world {
	w := newRegistry(t)
	w.node("amd", "amd64")
	t.Cleanup(func() {
		ctx := context.Background()
		for _, list := range []client.ObjectList{&corev1.PodList{}, &appsv1.DeploymentList{}, &corev1.NodeList{}, &v1alpha1.ImageManifestList{}, &corev1.SecretList{}, &eventsv1.EventList{}} {
			w.must(direct.List(ctx, list))
			w.must(meta.EachListItem(list, func(o runtime.Object) error {
				return client.IgnoreNotFound(direct.Delete(ctx, o.(client.Object), client.GracePeriodSeconds(0)))
			}))
		}
	})
	return w
}

// newRegistry returns a world that is a registry only.
func newRegistry(t *testing.T) *world {
	w := &world{t: t, ctx: t.Context(), requests: map[string]int{}}
	backend := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.UserAgent() == "layer-resolver" { // and not from push
			w.mu.Lock()
			w.requests[r.Method+" "+r.URL.Path]++
			w.mu.Unlock()
		}
		if f := w.before.Load(); f != nil && (*f)(rw, r) {
			return
		}
		backend.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.host = strings.TrimPrefix(server.URL, "http://")
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// manifestRequests returns the requests since the last call that count against
// a registry's limits.
func (w *world) manifestRequests() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[string]int{}
	for request, n := range w.requests {
		if strings.Contains(request, "/manifests/") {
			method, _, _ := strings.Cut(request, " ")
			found[method] += n
		} else if !strings.HasSuffix(request, "/v2/") {
			w.t.Errorf("the resolver has no business with %s", request)
		}
	}
	clear(w.requests)
	return found
}

func (w *world) expectRequests(get int) {
	w.t.Helper()
	if got := w.manifestRequests(); got["GET"] != get || got["HEAD"] != 0 {
		w.t.Errorf("requests %v, want %d GET and no HEAD", got, get)
	}
}

// push puts an image of three layers, or an index of such images for the
// architectures, into the registry and returns its reference.
func (w *world) push(tag string, architectures ...string) string {
	w.t.Helper()
	w.manifestRequests() // those after this count
	reference := w.host + "/" + tag
	parsed, err := name.ParseReference(reference, name.Insecure)
	w.must(err)
	build := func() v1.Image {
		image, err := random.Image(100, 3)
		w.must(err)
		return image
	}
	if len(architectures) == 0 {
		w.must(remote.Write(parsed, build()))
	} else {
		index := v1.ImageIndex(empty.Index)
		for _, architecture := range architectures {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: build(), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
			})
		}
		w.must(remote.WriteIndex(parsed, index))
	}
	return reference
}

func (w *world) node(nodeName, architecture string, images ...string) {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	w.must(direct.Create(w.ctx, node))
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: architecture}
	for _, image := range images {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{image}, SizeBytes: 1})
	}
	w.must(direct.Status().Update(w.ctx, node))
}

func (w *world) deployment(deployName, image string, secrets ...string) *appsv1.Deployment {
	w.t.Helper()
	labels := map[string]string{"app": deployName}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: deployName, Namespace: "default"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
	for _, secret := range secrets {
		d.Spec.Template.Spec.ImagePullSecrets = append(d.Spec.Template.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	w.must(direct.Create(w.ctx, d))
	return d
}

// start runs a resolver and returns a function that ends it.
func (w *world) start(change ...func(*Options)) (stop func()) {
	w.t.Helper()
	hosts := append([]string{w.host}, w.others...)
	allowed, err := policy.New(policy.Config{Registries: hosts, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	w.must(err)
	conf, text := filepath.Join(w.t.TempDir(), "registries.conf"), ""
	for _, host := range hosts {
		text += fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", host)
	}
	w.must(os.WriteFile(conf, []byte(text), 0o600))
	options := Options{Policy: allowed, TagTTL: time.Hour, KeepUnused: time.Hour, Workers: 4}
	for _, f := range change {
		f(&options)
	}
	if options.Registry == nil {
		options.Registry, err = registry.New(registry.Config{Policy: options.Policy, RegistriesConf: conf, RequestsPerSecond: 1000, Burst: 1000})
		w.must(err)
	}
	again := true
	mgr, err := ctrl.NewManager(plane.Config, ctrl.Options{
		Scheme: scheme, Cache: workloads.CacheOptions(), Metrics: server.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: &again},
		LeaderElection: true, LeaderElectionID: "resolver-test", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
		LeaseDuration: ptr.To(50 * time.Second), RenewDeadline: ptr.To(40 * time.Second), // of a machine that is busy
	})
	w.must(err)
	ctx, cancel := context.WithCancel(w.ctx)
	w.resolver, err = Add(ctx, mgr, options)
	w.must(err)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the resolver ended with %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// eventually waits until f succeeds, and fails with its message if it never
// does.
func (w *world) eventually(f func() error) {
	w.t.Helper()
	w.must(poll.Until(w.ctx, 20*time.Millisecond, time.Minute, func(context.Context) error { return f() }))
}

// manifests returns the ImageManifests that have a reference.
func (w *world) manifests(reference string) []v1alpha1.ImageManifest {
	var list v1alpha1.ImageManifestList
	w.must(direct.List(w.ctx, &list))
	return slices.DeleteFunc(list.Items, func(m v1alpha1.ImageManifest) bool {
		return !slices.ContainsFunc(m.Status.References, func(r v1alpha1.ImageReference) bool { return r.Name == reference })
	})
}

// resolved waits until a reference is resolved for that many platforms.
func (w *world) resolved(reference string, platforms int) []v1alpha1.ImageManifest {
	w.t.Helper()
	var found []v1alpha1.ImageManifest
	w.eventually(func() error {
		found = w.manifests(reference)
		if len(found) != platforms {
			return fmt.Errorf("%s has %d manifests, want %d", reference, len(found), platforms)
		}
		for _, m := range found {
			if m.Spec.Digest == "" {
				return fmt.Errorf("%s: %+v", reference, m.Status.Conditions)
			}
		}
		return nil
	})
	return found
}

// refused waits until a reference is not resolved for a reason.
func (w *world) refused(reference, reason string) metav1.Condition {
	w.t.Helper()
	var found metav1.Condition
	w.eventually(func() error {
		for _, m := range w.manifests(reference) {
			if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionResolved); c != nil && c.Reason == reason {
				found = *c
				return nil
			}
		}
		return fmt.Errorf("%s is not refused for %s: %+v", reference, reason, w.manifests(reference))
	})
	return found
}

func TestOneRequestAnImage(t *testing.T) {
	w := newWorld(t)
	reference := w.push("app:1", "amd64", "arm64")
	w.deployment("one", reference)
	stop := w.start()
	found := w.resolved(reference, 1)
	if m := found[0]; m.Spec.Platform != "linux/amd64" || len(m.Spec.Layers) != 3 || m.Spec.Size == 0 || m.Name != v1alpha1.ManifestName(m.Spec.Digest) {
		t.Errorf("manifest %+v", m)
	}
	w.expectRequests(2)

	// This holds for any number of pods, in any namespace, and for the digest too.
	for i := range 20 {
		w.deployment(fmt.Sprintf("more-%d", i), reference)
	}
	pinned := w.host + "/app@" + found[0].Status.References[0].Digest
	w.deployment("pinned", pinned)
	w.resolved(pinned, 1)
	w.expectRequests(0)

	// A node of another platform: its manifest is asked for.
	w.node("arm", "arm64")
	w.resolved(reference, 2)
	w.resolved(pinned, 2)
	w.manifestRequests()

	// Nothing is asked again after a restart.
	stop()
	defer w.start()()
	marker := w.push("marker:1")
	w.deployment("marker", marker)
	w.resolved(marker, 1)
	w.expectRequests(1)
}

func TestTagMoves(t *testing.T) {
	w := newWorld(t)
	reference, kept := w.push("app:1"), w.push("kept:1")
	w.deployment("one", reference)
	w.deployment("two", kept)
	w.start(func(o *Options) { o.TagTTL = 2 * time.Second })
	before := w.resolved(reference, 1)[0]
	first := w.resolved(kept, 1)[0].Status.References[0].LastConfirmed
	w.manifestRequests()
	w.push("app:1")
	w.eventually(func() error {
		found := w.manifests(reference)
		if len(found) != 1 || found[0].Name == before.Name {
			return fmt.Errorf("%d manifests, %s", len(found), before.Name)
		}
		return nil
	})
	w.eventually(func() error {
		if again := w.resolved(kept, 1)[0].Status.References[0].LastConfirmed; !again.After(first.Time) {
			return fmt.Errorf("confirmed %v, as before", again)
		}
		return nil
	})
	if got := w.manifestRequests(); got["GET"] != 1 || got["HEAD"] == 0 {
		t.Errorf("requests %v: a GET only for what moved", got)
	}
	// If a registry is down, nothing that is known is lost.
	down := func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	w.before.Store(&down)
	w.eventually(func() error {
		m := w.resolved(reference, 1)[0]
		if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionConfirmed); c == nil || c.Reason != v1alpha1.ReasonUnavailable {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}

// told waits for an event on a Deployment whose text has all of the parts.
func (w *world) told(deployment string, parts ...string) {
	w.t.Helper()
	w.eventually(func() error {
		var list eventsv1.EventList
		w.must(direct.List(w.ctx, &list, client.InNamespace("default")))
		for _, event := range list.Items {
			lacks := func(part string) bool { return !strings.Contains(event.Note, part) }
			if event.Regarding.Name == deployment && !slices.ContainsFunc(parts, lacks) {
				return nil
			}
		}
		return fmt.Errorf("no event about %s with %q among %d", deployment, parts, len(list.Items))
	})
}

func TestNotFoundIsTold(t *testing.T) {
	w := newWorld(t)
	reference := w.host + "/none:1"
	d := w.deployment("one", reference)
	stop := w.start()
	condition := w.refused(reference, v1alpha1.ReasonNotFound)
	if !strings.Contains(condition.Message, reference) && !strings.Contains(condition.Message, w.host) {
		t.Errorf("message %q does not name the image", condition.Message)
	}
	// Also a workload that comes when the refusal is already known.
	for _, d := range []*appsv1.Deployment{d, w.deployment("two", reference)} {
		w.eventually(func() error {
			var list eventsv1.EventList
			w.must(direct.List(w.ctx, &list, client.InNamespace("default")))
			for _, event := range list.Items {
				if event.Regarding.UID == d.UID && event.Regarding.Kind == "Deployment" && strings.Contains(event.Note, reference) {
					return nil
				}
			}
			return fmt.Errorf("no event about %s among %d", d.Name, len(list.Items))
		})
	}
	w.manifestRequests()
	// The refusal is believed for a while, also by the next process.
	stop()
	defer w.start()()
	marker := w.push("marker:1")
	w.deployment("marker", marker)
	w.resolved(marker, 1)
	w.expectRequests(1)
	// Deleting the object asks again.
	real := w.push("none:1")
	for _, m := range w.manifests(reference) {
		w.must(client.IgnoreNotFound(direct.Delete(w.ctx, &m)))
	}
	w.resolved(real, 1)
}

func TestRegistriesInUse(t *testing.T) {
	w := newWorld(t)
	reference := w.push("app:1")
	w.deployment("one", reference)
	allowed, err := policy.New(policy.Config{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	w.must(err)
	// Not listed in registries.conf either, which would allow it.
	asked, err := registry.New(registry.Config{Policy: allowed})
	w.must(err)
	w.start(func(o *Options) { o.Policy, o.InUse, o.Registry = allowed, true, asked })
	w.told("one", "("+v1alpha1.ReasonDenied+")")
	if found := w.manifests(reference); len(found) > 0 {
		t.Errorf("there is an object of what is denied: %+v", found)
	}
	w.expectRequests(0)
	// A node has an image from there: it is asked at once. It is no longer listed as
	// insecure, so it is asked for a certificate it does not have.
	w.node("user", "amd64", w.host+"/other:1")
	w.refused(reference, v1alpha1.ReasonUnavailable)
}

func (w *world) secret(secretName, user, password string) {
	w.t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	data, err := json.Marshal(map[string]any{"auths": map[string]any{w.host: map[string]any{"auth": auth}}})
	w.must(err)
	w.must(direct.Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secretName, Namespace: "default"},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: data},
	}))
}

func TestPullSecrets(t *testing.T) {
	w := newWorld(t)
	reference := w.push("private:1")
	var opened atomic.Int32
	basic := func(rw http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "me" && password == "open-sesame" {
			opened.Add(1)
			return false
		}
		rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	w.before.Store(&basic)
	w.secret("wrong", "me", "wrong")
	w.must(direct.Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "odd", Namespace: "default"}, Data: map[string][]byte{"key": []byte("value")},
	}))
	w.secret("right", "me", "open-sesame")
	w.deployment("one", reference, "wrong", "missing", "odd")
	stop := w.start()
	condition := w.refused(reference, v1alpha1.ReasonUnauthorized)
	if !strings.Contains(condition.Message, "--pull-secrets") {
		t.Errorf("message %q does not name the way out", condition.Message)
	}
	stop()
	// Nothing has to be deleted by hand.
	stop = w.start(func(o *Options) { o.PullSecrets = true })
	w.told("one", "default/missing does not exist", "default/odd is of type")
	condition = w.refused(reference, v1alpha1.ReasonUnauthorized)
	if strings.Contains(condition.Message, "default/") {
		t.Errorf("the object tells everybody: %q", condition.Message)
	}
	// A workload with another secret beside the wrong one: at once. What only that secret
	// opens is not published.
	w.deployment("two", reference, "wrong", "right")
	w.eventually(func() error {
		if opened.Load() == 0 {
			return errors.New("not asked for with the right secret")
		}
		return nil
	})
	w.refused(reference, v1alpha1.ReasonUnauthorized)
	stop()
	defer w.start(func(o *Options) { o.PullSecrets, o.PublishPrivate = true, true })()
	text, err := json.Marshal(w.resolved(reference, 1))
	w.must(err)
	if strings.Contains(string(text), "open-sesame") {
		t.Error("credentials in an object")
	}
}

func TestUnusedIsCollected(t *testing.T) {
	w := newWorld(t)
	reference := w.push("app:1")
	missing := w.host + "/none:1"
	one, two := w.deployment("one", reference), w.deployment("two", missing)
	w.start(func(o *Options) { o.KeepUnused = 2 * time.Second })
	w.resolved(reference, 1)
	w.refused(missing, v1alpha1.ReasonNotFound)
	w.must(direct.Delete(w.ctx, two))
	w.eventually(func() error {
		if n := len(w.manifests(missing)); n > 0 {
			return fmt.Errorf("%d left", n)
		}
		return nil
	})
	w.resolved(reference, 1) // it is in use
	w.must(direct.Delete(w.ctx, one))
	w.eventually(func() error {
		if n := len(w.manifests(reference)); n > 0 {
			return fmt.Errorf("%d left", n)
		}
		return nil
	})
}

// TestStoppedMidWork: images that were resolved before the stop are not asked
// for again, and all get resolved.
func TestStoppedMidWork(t *testing.T) {
	w := newWorld(t)
	const images, workers = 60, 4
	var references []string
	for i := range images {
		references = append(references, w.push(fmt.Sprintf("app-%d:1", i)))
	}
	for i, reference := range references {
		w.deployment(fmt.Sprintf("d-%d", i), reference)
	}
	half := make(chan struct{})
	var served atomic.Int32
	slow := func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") && served.Add(1) == images/2 {
			close(half)
		}
		time.Sleep(5 * time.Millisecond)
		return false
	}
	w.before.Store(&slow)
	stop := w.start(func(o *Options) { o.Workers = workers })
	<-half
	stop()
	w.start(func(o *Options) { o.Workers = workers })
	for _, reference := range references {
		w.resolved(reference, 1)
	}
	if got := w.manifestRequests()["GET"]; got < images || got > images+workers {
		t.Errorf("%d requests for %d images: only what was in flight may be asked twice", got, images)
	}
}

// TestLeader: a second replica watches and does nothing, until the first has gone.
func TestLeader(t *testing.T) {
	w := newWorld(t)
	reference := w.push("app:1")
	w.deployment("one", reference)
	first := w.start()
	w.resolved(reference, 1)
	w.start()
	second := w.push("app:2")
	w.deployment("two", second)
	w.resolved(second, 1)
	w.expectRequests(1)
	first()
	third := w.push("app:3")
	w.deployment("three", third)
	w.resolved(third, 1)
	w.expectRequests(1)
}

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// nodeWith returns a node that lists images, each given by its names, as the cache keeps it.
func nodeWith(t *testing.T, name string, images ...string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	node.Status.NodeInfo.OperatingSystem, node.Status.NodeInfo.Architecture = "linux", "amd64"
	for _, names := range images {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: strings.Fields(names)})
	}
	short, err := cached(node)
	if err != nil {
		t.Fatal(err)
	}
	return short.(*corev1.Node)
}

func byDigest(repository, letter string) string { return repository + "@" + hash(letter) }

// Images that only nodes hold are asked for after all others, by the number of nodes, at
// most two at a time; those whose content is known are not asked for.
func TestNodeImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, proceed := make(chan string, 100), make(chan bool)
		f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
			begun <- reference
			<-proceed
			return plain(store.DigestOf(reference)), nil
		}}
		registerer := prometheus.NewRegistry()
		r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes, o.Registerer = true, registerer })
		r.queues = runQueues(t, 4, r.work)
		handler := r.nodeHandler()
		image := func(letter string) string { return byDigest("quay.io/x", letter) }
		next := func() string {
			synctest.Wait()
			select {
			case reference := <-begun:
				return reference
			default:
				return "nothing"
			}
		}
		known := byDigest("quay.io/elsewhere", "e")
		s.must(s.Resolved(t.Context(), "quay.io/known:1", plain(hash("e")), amd64))

		r.leading.Store(false) // so that all nodes are known before the first question
		handler.OnAdd(nodeWith(t, "n1", image("a"), image("b"), image("c"), known), true)
		handler.OnAdd(nodeWith(t, "n2", image("b"), image("c"), image("d")), true)
		handler.OnAdd(nodeWith(t, "n3", image("c")), true)
		r.leading.Store(true)
		if n := r.usage.CountOnlyOnNodes(); n != 5 {
			t.Errorf("%d images are on nodes, want 5", n)
		}
		r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
		if err := testutil.GatherAndCompare(registerer, strings.NewReader(`
# HELP layerlocality_resolver_images_in_use Images that workloads name.
# TYPE layerlocality_resolver_images_in_use gauge
layerlocality_resolver_images_in_use 1
# HELP layerlocality_resolver_images_on_nodes Images that nodes hold and no workload names.
# TYPE layerlocality_resolver_images_on_nodes gauge
layerlocality_resolver_images_on_nodes 5
`), "layerlocality_resolver_images_in_use", "layerlocality_resolver_images_on_nodes"); err != nil {
			t.Error(err)
		}
		r.usage.Unset(imagesFor("w", "ns").Workload)
		// Start asks for one after the other; here all wait before the first is asked for.
		r.handOver(r.nodeImages.Want(r.usage.All()...))
		if first, second := next(), next(); !slices.Contains([]string{image("c"), image("b")}, first) || !slices.Contains([]string{image("c"), image("b")}, second) || first == second {
			t.Errorf("asked for %s and %s first, want those on most nodes", first, second)
		}
		if got := next(); got != "nothing" {
			t.Errorf("asked for %s while two are asked for", got)
		}
		// A workload's image does not wait for them.
		r.workloadHandler(&kinds[1]).OnAdd(deploymentOf("default", "quay.io/workload@"+hash("9")), false)
		if got := next(); got != "quay.io/workload@"+hash("9") {
			t.Errorf("asked for %s, want the image of the workload", got)
		}
		for range 5 {
			proceed <- true
		}
		rest := []string{next(), next(), next()}
		slices.Sort(rest)
		if !slices.Equal(rest, []string{"nothing", image("a"), image("d")}) {
			t.Errorf("then asked for %q", rest)
		}
		synctest.Wait()
		for _, reference := range []string{image("a"), image("b"), image("c"), image("d"), known} {
			if r.store.Lookup(reference) == nil || !r.store.Has(reference) {
				t.Errorf("%s is not kept", reference)
			}
		}
		if n := testutil.ToFloat64(r.metrics.lookups.WithLabelValues("held", v1alpha1.ReasonResolved)); n != 4 {
			t.Errorf("%v are counted as asked for, want 4", n)
		}
		if r.nodeImages.Waiting() != 0 {
			t.Errorf("left: %+v", r.nodeImages)
		}
		// What no node holds any longer is not in use.
		handler.OnDelete(nodeWith(t, "n3"))
		handler.OnUpdate(nil, nodeWith(t, "n2"))
		if !r.usage.InUse(image("b")) || r.usage.InUse(image("d")) {
			t.Errorf("in use: %v", r.usage.All())
		}
		handler.OnDelete(nodeWith(t, "n1"))
		if n := r.usage.CountOnlyOnNodes(); n != 0 {
			t.Errorf("%d images are on nodes, which are gone: %+v", n, r.nodeImages)
		}
	})
}

// While a registry does not answer, it is asked for two images at most; refused ones are
// asked for again after hours. A workload that names one changes that.
func TestNodeImagesOfFaultyRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reason atomic.Value
		reason.Store(v1alpha1.ReasonUnavailable)
		f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
			return nil, &registry.Error{Reason: reason.Load().(string), Reference: "quay.io/x", Err: errors.New("no")}
		}}
		r, s, told := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes = true })
		r.queues = runQueues(t, 4, r.work)
		image := func(letter string) string { return byDigest("quay.io/x", letter) }
		r.nodeHandler().OnAdd(nodeWith(t, "n1", image("a"), image("b"), image("c"), image("d")), false)
		later := func(d time.Duration) {
			time.Sleep(d)
			s.Clock.SetTime(s.Clock.Now().Add(d))
			synctest.Wait()
		}
		later(time.Minute)
		f.mu.Lock()
		asked := slices.Compact(slices.Sorted(slices.Values(f.resolves)))
		f.mu.Unlock()
		if len(asked) != usage.MaxAsked {
			t.Errorf("asked for %q", asked)
		}
		reason.Store(v1alpha1.ReasonNotFound)
		for range 60 {
			later(time.Minute)
		}
		if n := f.asked(); n > 2*60 {
			t.Errorf("%d questions in an hour", n)
		}
		for _, letter := range []string{"a", "b", "c", "d"} {
			if failure := r.store.Failure(image(letter)); failure.Reason != v1alpha1.ReasonNotFound {
				t.Errorf("%s: %+v, want the reason why it is one piece", image(letter), failure)
			}
		}
		before := f.asked()
		for range 4 {
			later(time.Hour)
		}
		if n := f.asked() - before; n != 0 {
			t.Errorf("%d questions within hours after a refusal", n)
		}
		if len(told.notes) != 0 {
			t.Errorf("events about what only nodes hold: %q", told.notes)
		}
		r.workloadHandler(&kinds[1]).OnAdd(deploymentOf("default", image("a")), false)
		later(time.Minute)
		if n := f.asked() - before; n != 1 {
			t.Errorf("%d questions for a workload, want one", n)
		}
	})
}

// An image that is gone from the nodes gives its place to the next one.
func TestNodeImageThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
			return nil, &registry.Error{Reason: v1alpha1.ReasonUnavailable, Reference: "quay.io/x", Err: errors.New("no")}
		}}
		r, _, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes = true })
		r.queues = runQueues(t, 4, r.work)
		image := func(letter string) string { return byDigest("quay.io/x", letter) }
		r.nodeHandler().OnAdd(nodeWith(t, "n1", image("a"), image("b"), image("c"), image("d")), false)
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		asked := slices.Compact(slices.Sorted(slices.Values(f.resolves)))
		f.mu.Unlock()
		var left []string
		for _, letter := range []string{"a", "b", "c", "d"} {
			if !slices.Contains(asked, image(letter)) {
				left = append(left, image(letter))
			}
		}
		r.nodeHandler().OnUpdate(nil, nodeWith(t, "n1", left...))
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, image := range left {
			if !slices.Contains(f.resolves, image) {
				t.Errorf("%s was not asked for, after %q", image, asked)
			}
		}
	})
}

// Credentials of no namespace are used for what only nodes hold; and it can be switched off.
func TestNodeImagesHaveNoPullSecrets(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{}, func(o *Options, _ *dependencies) { o.ImagesOnNodes = true })
	queued(t, r)
	image := byDigest("quay.io/x", "a")
	r.nodeHandler().OnAdd(nodeWith(t, "n1", image), false)
	if !r.usage.OnlyOnNodes(image) {
		t.Error("the image is not in use")
	}
	if pulls, _ := r.usage.PullsFrom(image, usage.Pull{}, 8); len(pulls) != 0 {
		t.Errorf("pull secrets %v", pulls)
	}
	if workloads := r.usage.Workloads(image, 8); len(workloads) != 0 {
		t.Errorf("workloads %v", workloads)
	}
	r.usage.Set(imagesFor("w", "ns", image))
	pulls, _ := r.usage.PullsFrom(image, usage.Pull{}, 8)
	if workloads := r.usage.Workloads(image, 8); r.usage.OnlyOnNodes(image) || len(pulls) != 1 || len(workloads) != 1 {
		t.Errorf("of a workload: pull secrets %v, workloads %v", pulls, workloads)
	}
	off, _, _ := newTestResolver(t, &fakeRegistry{})
	off.nodeHandler().OnAdd(nodeWith(t, "n1", image), false)
	if off.usage.InUse(image) {
		t.Error("in use, although it is switched off")
	}
}

// After nodeImageAttempts without an answer others have their turn, but not after as many
// refusals or requests to wait.
func TestGaveUp(t *testing.T) {
	for reason, want := range map[string]bool{v1alpha1.ReasonUnavailable: true, v1alpha1.ReasonRateLimited: false, v1alpha1.ReasonNotFound: false} {
		for failures, want := range map[int]bool{nodeImageAttempts - 1: false, nodeImageAttempts: want} {
			if a := (attempt{Failure: store.Failure{Failures: failures, Reason: reason}}); a.gaveUp() != want {
				t.Errorf("%d times %s: gave up is %v", failures, reason, a.gaveUp())
			}
		}
	}
}

// Images on which a registry fails for ever do not keep the others from being asked for; they
// are asked for again, seldom.
func TestNodeImagesThatBreakARegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
			asked[reference]++
			if strings.Contains(reference, "broken") {
				return nil, &registry.Error{Reason: v1alpha1.ReasonUnavailable, Reference: reference, Err: errors.New("500")}
			}
			return plain(store.DigestOf(reference)), nil
		}}
		r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes = true })
		r.queues = runQueues(t, 1, r.work)
		var images, whole []string
		for i := range usage.MaxAsked {
			images = append(images, byDigest("quay.io/broken", fmt.Sprint(i)))
		}
		for _, letter := range []string{"a", "b", "c"} {
			whole = append(whole, byDigest("quay.io/whole", letter))
		}
		r.nodeHandler().OnAdd(nodeWith(t, "n1", append(images, whole...)...), false)
		minutes := func(n int) {
			for range n {
				time.Sleep(time.Minute)
				s.Clock.SetTime(s.Clock.Now().Add(time.Minute))
				synctest.Wait()
			}
		}
		minutes(60)
		for _, reference := range whole {
			if r.store.Lookup(reference) == nil {
				t.Errorf("%s is not known after an hour", reference)
			}
		}
		before := asked[images[0]]
		minutes(6 * 60)
		if n := asked[images[0]] - before; n < 3 || n > 7 {
			t.Errorf("a broken image was asked for %d times in six hours", n)
		}
	})
}

// What only nodes hold is not asked for without room for it, and displaces nothing: those on
// most nodes are known.
func TestNodeImagesWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
			return plain(store.DigestOf(reference)), nil
		}}
		const limit = 16
		r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes, o.MaxImages = true, limit })
		r.queues = runQueues(t, 1, r.work)
		r.leading.Store(false)
		var images []string
		for i := range 3 * limit {
			images = append(images, fmt.Sprintf("quay.io/x@sha256:%064x", i))
		}
		for i := range images { // the first is on all nodes
			r.nodeHandler().OnAdd(nodeWith(t, fmt.Sprint("n", i), images[:i+1]...), true)
		}
		r.leading.Store(true)
		r.handOver(r.nodeImages.Want(r.usage.All()...))
		for range 10 {
			time.Sleep(time.Minute)
			s.Clock.SetTime(s.Clock.Now().Add(time.Minute))
			synctest.Wait()
			r.sweep(t.Context())
		}
		room := limit - limit/8 - 1
		if n := f.asked(); n != room {
			t.Errorf("asked for %d images, there is room for %d", n, room)
		}
		for i, image := range images {
			if known := r.store.Lookup(image) != nil; known != (i < room) {
				t.Errorf("image %d of %d, the first is on most nodes: known %t", i, len(images), known)
			}
		}
		if r.nodeImages.Waiting() != 0 {
			t.Errorf("left: %+v", r.nodeImages)
		}
		r.workloadHandler(&kinds[1]).OnAdd(deploymentOf("default", images[limit]), false)
		synctest.Wait()
		if r.store.Lookup(images[limit]) == nil {
			t.Error("a workload's image has no room")
		}
	})
}

// A node of another platform joins while a registry is asked for an image that nodes hold: it is
// asked again.
func TestNodeImageWhileANodeJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := byDigest("quay.io/x", "f")
		proceed := make(chan bool)
		f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
			<-proceed
			return twoPlatforms(), nil
		}}
		r, s, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes = true })
		r.queues = runQueues(t, 1, r.work)
		r.nodeHandler().OnAdd(nodeWith(t, "n", image), false)
		synctest.Wait()
		addNodes(r, both...)
		close(proceed)
		synctest.Wait()
		s.expect(map[string]string{v1alpha1.ManifestName(hash("a")): image, v1alpha1.ManifestName(hash("b")): image})
		if known := s.Lookup(image); f.asked() != 2 || !known.Covers(both) {
			t.Errorf("asked for %q, known is %+v", f.resolves, known)
		}
		if r.nodeImages.Waiting() != 0 {
			t.Errorf("left: %+v", r.nodeImages)
		}
	})
}

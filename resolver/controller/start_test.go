package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
	"github.com/layer-locality/layer-locality/resolver/store"
)

// A process begins to lead: it takes over what objects say, asks for what is missing, and
// from then on puts back what somebody else changes. It ends without leaving anything
// running, or synctest fails.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const known, missing, unused = "reg/known:1", "reg/missing:1", "reg/unused:1"
		f := &fakeRegistry{
			resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("b")), nil },
			digest:  func(string) (string, error) { return hash("a"), nil },
		}
		before, s, _ := newTestResolver(t, f)
		s.must(s.Resolved(t.Context(), known, plain(hash("a")), amd64))
		s.must(s.Resolved(t.Context(), unused, plain(hash("c")), amd64))
		s.must(s.NoteUnused(t.Context(), unused, s.Clock.Now()))
		s.Clock.SetTime(s.Clock.Now().Add(before.options.KeepUnused - time.Minute))
		live := s.WithWatch
		cached := interceptor.NewClient(live, interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return errors.New("the cache may be behind")
			},
		})
		r := newResolver(before.options, dependencies{clock: s.Clock, log: before.log, client: cached, live: live, events: before.events})
		s.Store = r.store
		r.nodes.set("n", nodeFacts{platform: amd64[0]})
		r.usage.Set(imagesFor("w", "ns", known, missing))
		var synced atomic.Bool
		r.synced = []cache.InformerSynced{synced.Load}

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Start(ctx) }()
		time.Sleep(time.Second)
		if r.leading.Load() || f.asked() != 0 || r.nodes.known {
			t.Error("it began before it had seen all objects")
		}
		synced.Store(true)
		time.Sleep(time.Second)
		a, b, c := v1alpha1.ManifestName(hash("a")), v1alpha1.ManifestName(hash("b")), v1alpha1.ManifestName(hash("c"))
		s.expect(map[string]string{a: known, b: missing, c: unused})
		if f.asked() != 1 || !r.leading.Load() || !r.nodes.known {
			t.Errorf("asked for %q, leading %t", f.resolves, r.leading.Load())
		}

		// Somebody else changes an object, first while the API server takes no writes.
		var changes []drift
		for _, fails := range []error{errors.New("etcdserver: no leader"), nil} {
			var object v1alpha1.ImageManifest
			s.must(live.Get(t.Context(), client.ObjectKey{Name: a}, &object))
			object.Status.References[0].Name = "reg/forged:1"
			s.must(live.Update(t.Context(), &object))
			s.Mu.Lock()
			s.Fails = fails
			s.Mu.Unlock()
			changes = append(changes, drift{a, object.ResourceVersion})
			r.manifestHandler().OnUpdate(nil, &object)
			synctest.Wait()
			s.Mu.Lock()
			s.Fails = nil
			s.Mu.Unlock()
			time.Sleep(time.Second)
			s.expect(map[string]string{a: known, b: missing, c: unused})
		}
		if n := testutil.ToFloat64(r.metrics.repaired); n != 2 {
			t.Errorf("%v repaired objects are counted", n)
		}

		// What could not be repaired until another change came is not remembered for ever.
		var object v1alpha1.ImageManifest
		s.must(live.Get(t.Context(), client.ObjectKey{Name: a}, &object))
		overtaken := drift{a, object.ResourceVersion}
		r.drifts.AddRateLimited(overtaken)
		time.Sleep(time.Second)
		for _, one := range append(changes, overtaken) {
			if n := r.drifts.NumRequeues(one); n != 0 {
				t.Errorf("%v: %d failures are remembered", one, n)
			}
		}

		// The process before noted since when it is unused.
		s.Clock.SetTime(s.Clock.Now().Add(time.Minute))
		time.Sleep(10 * time.Second)
		s.expect(map[string]string{a: known, b: missing})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// What a replica noted before it led does not hide how attempts of the process before it ended.
func TestStartKeepsToFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tag = "reg/x:1"
		f := &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) { return plain(hash("a")), nil }}
		before, s, _ := newTestResolver(t, f)
		failed := before.attempts.failed(one(tag), attempt{}, v1alpha1.ReasonUnavailable, "503", time.Hour)
		s.must(s.NotResolved(t.Context(), tag, failed.Failure))
		r := newResolver(before.options, dependencies{clock: s.Clock, log: before.log, client: s.Server, live: s.Server, events: before.events})
		r.usage.Set(imagesFor("w", "ns", tag))
		r.circumstancesChanged(clusterChanges{networks: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Start(ctx) }()
		time.Sleep(time.Minute)
		if got := r.attempts.of(one(tag)); f.asked() != 0 || got.Reason != failed.Reason || got.Failures != 1 {
			t.Errorf("asked for %q, known is %+v", f.resolves, got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A process that ends asks for nothing any more when the next one begins to lead.
func TestStartEndsWithItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, proceed := 0, make(chan struct{})
		r, _, _ := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
			asked++
			<-proceed
			return plain(hash("a")), nil
		}})
		r.usage.Set(imagesFor("w", "ns", "reg/x:1"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		go func() {
			if err := r.Start(ctx); err != nil {
				t.Error(err)
			}
			ended = true
		}()
		for i, step := range []func(){func() {}, cancel, func() { close(proceed) }} {
			step()
			synctest.Wait()
			if want := i == 2; asked != 1 || ended != want {
				t.Errorf("step %d: asked %d times, ended is %v", i, asked, ended)
			}
		}
	})
}

// Images on nodes are asked for although they are known before there are queues.
func TestStartWithImagesOnNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRegistry{resolve: func(reference string, _ []string) (*registry.Resolution, error) {
			return plain(store.DigestOf(reference)), nil
		}}
		r, _, _ := newTestResolver(t, f, func(o *Options, _ *dependencies) { o.ImagesOnNodes = true })
		for i, leads := range []bool{false, true} { // leading is set before there are queues
			r.leading.Store(leads)
			r.nodeHandler().OnAdd(nodeWith(t, fmt.Sprint("n", i), byDigest("quay.io/x", fmt.Sprint(i))), true)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Start(ctx) }()
		time.Sleep(time.Minute)
		if f.asked() != 2 {
			t.Errorf("asked for %q, want both images", f.resolves)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A process that ends before it has seen all objects does nothing.
func TestStartIsCanceled(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	r.leading.Store(false)
	r.synced = []cache.InformerSynced{func() bool { return false }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Start(ctx); err == nil || r.leading.Load() {
		t.Errorf("error %v, leading %t", err, r.leading.Load())
	}
}

// TestWatchServices: ServiceCIDRs are watched where the API server has them; that it does not say
// whether is an error.
func TestWatchServices(t *testing.T) {
	has := meta.NewDefaultRESTMapper(nil)
	has.Add(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), meta.RESTScopeRoot)
	for _, test := range []struct {
		mapper  meta.RESTMapper
		watched int
		err     string
	}{
		{meta.NewDefaultRESTMapper(nil), 0, "<nil>"},
		{has, 1, "<nil>"},
		{undiscovered{}, 0, "looking for ServiceCIDRs: connection refused"},
	} {
		r, _, _ := newTestResolver(t, &fakeRegistry{})
		watched := 0
		err := r.watchServices(&discovering{mapper: test.mapper}, func(client.Object, cache.ResourceEventHandler) error {
			watched++
			return nil
		})
		if watched != test.watched || fmt.Sprint(err) != test.err {
			t.Errorf("%T: watched %d times, error %v; want %d, %s", test.mapper, watched, err, test.watched, test.err)
		}
	}
}

// Networks of services are the cluster's own as long as an object names them.
func TestServiceNetworks(t *testing.T) {
	r, _, _ := newTestResolver(t, &fakeRegistry{})
	handler := r.serviceHandler()
	services := func(networks ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: networks}}
	}
	expect := func(networks ...string) {
		t.Helper()
		var want []netip.Prefix
		for _, network := range networks {
			want = append(want, netip.MustParsePrefix(network))
		}
		if !slices.Equal(r.nodes.networks, want) {
			t.Errorf("networks %v, want %v", r.nodes.networks, want)
		}
	}
	handler.OnAdd(services("10.96.0.0/12"), false)
	expect("10.96.0.0/12")
	handler.OnUpdate(nil, services("10.96.0.0/12", "fd00::/108"))
	expect("10.96.0.0/12", "fd00::/108")
	handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: services()})
	expect()
}

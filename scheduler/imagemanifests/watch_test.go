package imagemanifests

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/internal/fixture"
	"github.com/layer-locality/layer-locality/scheduler/internal/objects"
)

// apiserver answers a client without a network.
type apiserver struct{ *fixture.Apiserver }

func newAPIServer(t *testing.T) apiserver {
	return apiserver{&fixture.Apiserver{T: t, Resource: "imagemanifests"}}
}

func (a apiserver) set(status int, objects ...*v1alpha1.ImageManifest) {
	list := &v1alpha1.ImageManifestList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifestList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "7"},
	}
	for _, m := range objects {
		list.Items = append(list.Items, *m)
	}
	a.Set(status, list)
}

// event sends a watch event to the last client.
func (a apiserver) event(kind string, m *v1alpha1.ImageManifest) {
	a.T.Helper()
	m.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifest"}
	m.ResourceVersion = "8"
	a.Event(kind, m)
}

// A source copes with every state of the apiserver: the resource is missing,
// reading it is forbidden, it is there, it is gone again. It logs each change
// once.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		logged := func(text string) int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), text)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		server := newAPIServer(t)
		server.set(http.StatusNotFound)
		client, err := objects.NewClient(&rest.Config{Host: "https://apiserver.example", Transport: server, ContentConfig: rest.ContentConfig{
			ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		}})
		if err != nil {
			t.Fatal(err)
		}
		s := newSource()
		s.leaseActive = true // there is a layer-resolver
		done := make(chan struct{})
		go func() { defer close(done); s.watch(ctx, client) }()

		const cannot, can = "Cannot watch ImageManifests", "Watching ImageManifests"
		state := func(when string, awaits bool, failures, successes int) {
			t.Helper()
			if got := s.Awaits([]imageref.Canonical{"quay.io/a/new:1"}); got != awaits {
				t.Errorf("%s: an image is awaited: %t", when, got)
			}
			if logged(cannot) != failures || logged(can) != successes {
				t.Errorf("%s: logged %d times that it cannot and %d times that it can, want %d and %d", when, logged(cannot), logged(can), failures, successes)
			}
		}
		later := func() { time.Sleep(time.Hour); synctest.Wait() }

		later()
		state("without the resource", false, 1, 0)
		server.set(http.StatusForbidden)
		later()
		state("without the right", false, 2, 0)

		one := manifest("one", "", "a", reference("quay.io/a/one:1", "one", 0))
		one.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "layer-resolver"}}
		server.set(http.StatusOK, one, manifest("two", "linux/amd64", "b", reference("quay.io/a/two:1", "two", 0)))
		later()
		state("with the resource", true, 2, 1)
		expect(t, s, map[string]platforms{"quay.io/a/one:1": {every: "a"}, "x@" + sha("two"): {every: "b"}})

		server.event("ADDED", manifest("three", "", "c", reference("quay.io/a/three:1", "three", 0)))
		server.event("MODIFIED", manifest("one", "", "a", reference("quay.io/a/one:2", "one", 0)))
		server.event("DELETED", manifest("two", "linux/amd64", "b"))
		synctest.Wait()
		expect(t, s, map[string]platforms{
			"quay.io/a/three:1": {every: "c"}, "quay.io/a/one:1": nil, "quay.io/a/one:2": {every: "a"}, "x@" + sha("two"): nil,
		})

		// The resource is removed again: what is known stays, nothing more is
		// awaited.
		server.set(http.StatusNotFound)
		server.CloseWatch()
		later()
		state("without the resource again", false, 3, 1)
		expect(t, s, map[string]platforms{"quay.io/a/three:1": {every: "c"}})

		// What was deleted in between is forgotten with the next list.
		server.set(http.StatusOK, manifest("one", "", "a", reference("quay.io/a/one:3", "one", 0)))
		later()
		state("with the resource again", true, 3, 2)
		expect(t, s, map[string]platforms{"quay.io/a/one:3": {every: "a"}, "quay.io/a/three:1": nil})
		if len(s.objects) != 1 {
			t.Errorf("%d objects", len(s.objects))
		}

		cancel()
		server.CloseWatch()
		<-done
	})
}

// Any failure lets a scheduler begin. A host that can put off questions waits for the objects,
// unless the failure means that there will be none.
func TestRequireSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, requireSync := range []bool{false, true} {
			for status, began := range map[int]bool{
				http.StatusNotFound: true, http.StatusForbidden: true,
				http.StatusUnauthorized: !requireSync, http.StatusInternalServerError: !requireSync, http.StatusServiceUnavailable: !requireSync,
			} {
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Background()))
				server := newAPIServer(t)
				server.set(status)
				client, err := objects.NewClient(&rest.Config{Host: "https://apiserver.example", Transport: server})
				if err != nil {
					t.Fatal(err)
				}
				s := newSource()
				if requireSync {
					s = s.RequireSync()
				}
				done := make(chan struct{})
				go func() { defer close(done); s.watch(ctx, client) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				if s.HasSynced() != began {
					t.Errorf("requireSync: %t, after %d: HasSynced is %t", requireSync, status, s.HasSynced())
				}
				server.set(http.StatusOK)
				time.Sleep(time.Minute)
				synctest.Wait()
				if !s.HasSynced() {
					t.Errorf("requireSync: %t, %d, then a list: it has not synced", requireSync, status)
				}
				cancel()
				server.CloseWatch()
				<-done
			}
		}
	})
}

// Until an ImageManifest was seen, images are awaited only while a layer-resolver renews
// its Lease.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := fake.NewClientset()
		leases := client.CoordinationV1().Leases(leaseNamespace)
		s := newSource()
		s.setWatching(true)
		go s.watchLease(ctx, leases)
		awaits := func(when string, want bool) {
			t.Helper()
			time.Sleep(leasePeriod + time.Second)
			synctest.Wait()
			if got := s.Awaits([]imageref.Canonical{"quay.io/a/new:1"}); got != want {
				t.Errorf("%s: awaited %t, want %t", when, got, want)
			}
		}
		awaits("without a Lease", false)
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("pod_1"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &metav1.MicroTime{Time: time.Now()},
		}}
		lease, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		awaits("with a new Lease", true)
		time.Sleep(30 * time.Second)
		awaits("nobody renews it", false)
		update := func() {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		update()
		awaits("renewed", true)
		lease.Spec.HolderIdentity = ptr.To("")
		update()
		awaits("released", false)
		if err := s.apply(unresolved("quay.io/a/asked:1", metav1.ConditionUnknown)); err != nil {
			t.Fatal(err)
		}
		awaits("an ImageManifest was seen", true)
		client.ClearActions()
		awaits("for ever", true)
		if n := len(client.Actions()); n > 0 {
			t.Errorf("the Lease was read %d times although it does not matter", n)
		}
	})
}

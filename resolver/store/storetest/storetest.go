// Package storetest has an API server for tests of what writes ImageManifests.
package storetest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// Server is a client of an API server in memory. Tests may replace WithWatch, by one that
// calls it.
type Server struct {
	client.WithWatch
	// Clock begins in 2026.
	Clock *testingclock.FakePassiveClock
	// Mu guards the rest: workers may write at the same time.
	Mu sync.Mutex
	// Writes counts requests that change an object.
	Writes int
	// Fails is the error that the API server returns for writes; nil for none. FailsDelete
	// is that of removing objects only.
	Fails, FailsDelete error
	t                  *testing.T
}

// New returns a Server without objects.
func New(t *testing.T) *Server {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, Clock: testingclock.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	count := func() error {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.Writes++
		return s.Fails
	}
	s.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := count(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := count(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := cmp.Or(count(), s.FailsDelete); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	}).Build()
	return s
}

// Manifests returns the objects.
func (s *Server) Manifests() []v1alpha1.ImageManifest {
	var list v1alpha1.ImageManifestList
	if err := s.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// Objects returns the objects by name, each as "reference reference".
func (s *Server) Objects() map[string]string {
	found := map[string]string{}
	for _, object := range s.Manifests() {
		var names []string
		for _, reference := range object.Status.References {
			names = append(names, reference.Name)
		}
		slices.Sort(names)
		found[object.Name] = strings.Join(names, " ")
	}
	return found
}

// Digest returns a valid digest for a letter.
func Digest(letter string) string { return "sha256:" + strings.Repeat(letter, 64) }

// Manifest returns the manifest with that digest, for a platform. It has one layer.
func Manifest(digest, platform string) v1alpha1.ImageManifestSpec {
	return v1alpha1.ImageManifestSpec{
		Digest: digest, Platform: platform, Size: 7, Layers: []v1alpha1.ImageLayer{{Digest: Digest("0"), Size: 7}},
	}
}

// Plain returns the resolution of a reference to a manifest without an index.
func Plain(digest string) *registry.Resolution {
	return &registry.Resolution{Digest: digest, Manifests: []v1alpha1.ImageManifestSpec{Manifest(digest, "")}}
}

package imagemanifests

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/scheduler/internal/objects"
)

// NewSource returns a source that watches the ImageManifests of a cluster once it is
// started. Nothing is known as long as there are none, or the resource or the permission to
// read it is missing.
func NewSource(config *rest.Config) (*Source, error) {
	if config == nil {
		return nil, errors.New("ImageManifests: no client configuration")
	}
	client, err := objects.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("ImageManifests: %w", err)
	}
	leases, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("ImageManifests: %w", err)
	}
	s := newSource()
	s.client, s.leases = client, leases.Leases(leaseNamespace)
	return s, nil
}

// RequireSync has HasSynced be false until the objects were listed, unless there is no such
// resource or it may not be read. It is for a host that can put off questions. Otherwise any
// error lets the host begin, which may have to wait for HasSynced.
func (s *Source) RequireSync() *Source {
	s.requireSync = true
	return s
}

// WithoutLeaseWatch has the source not look whether a layer-resolver is elected, for which it
// needs a permission. It is for a host that gates no pods, and so does not call Awaits. Call it
// before Start.
func (s *Source) WithoutLeaseWatch() *Source {
	s.leases = nil
	return s
}

// Where layer-resolver is elected (deploy/resolver).
const (
	leaseNamespace = "kube-system"
	leaseName      = "layer-resolver"
	leasePeriod    = 5 * time.Second
)

// watchLease looks whether a layer-resolver is elected, until an ImageManifest shows that
// there is one. Without the permission to read the Lease there is none as far as is known.
func (s *Source) watchLease(ctx context.Context, leases coordinationclient.LeaseInterface) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		s.mu.RLock()
		look := s.watching && !s.seen
		s.mu.RUnlock()
		if !look {
			return
		}
		lease, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
		leaseActive := err == nil && renewed(lease, time.Now())
		s.mu.Lock()
		s.leaseActive = leaseActive
		s.mu.Unlock()
	}, leasePeriod)
}

// renewed reports whether somebody holds a Lease. The clocks of two machines may differ a
// little.
func renewed(lease *coordinationv1.Lease, now time.Time) bool {
	spec := &lease.Spec
	if ptr.Deref(spec.HolderIdentity, "") == "" || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	return now.Sub(spec.RenewTime.Time) < 2*time.Duration(*spec.LeaseDurationSeconds)*time.Second
}

// watch keeps the source up to date.
func (s *Source) watch(ctx context.Context, client rest.Interface) {
	resource := v1alpha1.ImageManifestsResource
	objects.Followed{
		Client: client, Resource: resource, Example: &v1alpha1.ImageManifest{}, Store: &store{Source: s, logger: objects.Logger(ctx, resource)},
		Cannot: "Cannot watch ImageManifests: layers of images are known only from nodes that report them. The scheduler tries again; to use layer-resolver, install it and let the scheduler list and watch ImageManifests",
		Failed: func(err error) (watched bool) {
			if !s.requireSync || objects.None(err) {
				s.tried.Store(true)
			}
			return s.setWatching(false)
		},
	}.Follow(ctx)
}

// store makes a Source usable as the store of a reflector.
type store struct {
	*Source
	logger klog.Logger
}

var _ cache.TransformingStore = &store{}

// Add implements cache.ReflectorStore.
func (s *store) Add(obj any) error {
	defer s.notify()
	return s.add(obj)
}

func (s *store) add(obj any) error {
	m, ok := obj.(*v1alpha1.ImageManifest)
	if !ok {
		return fmt.Errorf("an ImageManifest is a %T", obj)
	}
	if err := s.apply(m); err != nil {
		s.logger.V(3).Info("Part or all of an ImageManifest is left out", "name", m.Name, "reason", err)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(obj any) error {
	if m, ok := obj.(*v1alpha1.ImageManifest); ok {
		defer s.notify()
		return s.set(m.Name, nil)
	}
	return nil
}

// Replace implements cache.ReflectorStore: objs are all objects.
func (s *store) Replace(objs []any, _ string) error {
	listed := make(map[string]bool, len(objs))
	for _, obj := range objs {
		if err := s.add(obj); err != nil {
			return err
		}
		listed[obj.(*v1alpha1.ImageManifest).Name] = true
	}
	for name := range s.objects {
		if !listed[name] {
			_ = s.set(name, nil) // there is always room for nothing
		}
	}
	s.notify() // of all together: a node that lists many of them is looked at once
	s.tried.Store(true)
	if s.setWatching(true) {
		s.logger.Info("Watching ImageManifests", "objects", len(objs))
	}
	return nil
}

// Resync implements cache.ReflectorStore: there is nothing to repeat.
func (s *store) Resync() error { return nil }

// Transformer implements cache.TransformingStore: it keeps only the used parts of
// the objects that the reflector collects.
func (s *store) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if m, ok := obj.(*v1alpha1.ImageManifest); ok {
			s.slim(m)
		}
		return obj, nil
	}
}

func (s *Source) slim(m *v1alpha1.ImageManifest) {
	m.ObjectMeta = metav1.ObjectMeta{Name: m.Name, ResourceVersion: m.ResourceVersion}
	m.Status.Conditions = resolvedOnly(m.Status.Conditions)
	for i := range m.Spec.Layers {
		m.Spec.Layers[i].Digest = s.strings.Intern(m.Spec.Layers[i].Digest)
	}
}

func resolvedOnly(conditions []metav1.Condition) []metav1.Condition {
	for _, c := range conditions {
		if c.Type == v1alpha1.ConditionResolved {
			return []metav1.Condition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}

// Package objects follows all objects of one of this project's resources. The resource may be
// missing, or may not be read: then it is tried again and again, and logged once.
package objects

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	codecs "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// NewClient returns a client for the API group, whatever encoding the configuration prefers:
// custom resources come as JSON.
func NewClient(base *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(base)
	config.APIPath, config.GroupVersion = "/apis", &v1alpha1.GroupVersion
	config.NegotiatedSerializer = newSerializer(codecs.NewCodecFactory(scheme).WithoutConversion(), scheme, v1alpha1.GroupVersion)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientFor(config)
}

// Followed are objects that are to be followed.
type Followed struct {
	Client   rest.Interface
	Resource schema.GroupVersionResource
	// Example is an object of the resource.
	Example runtime.Object
	// Store gets the objects. A reflector writes into it directly, because an informer would
	// keep all objects a second time.
	Store cache.ReflectorStore
	// Cannot is logged when the objects cannot be watched, once for each reason.
	Cannot string
	// Failed is called whenever they cannot be watched. It returns whether they were being
	// watched until then.
	Failed func(err error) (watched bool)
}

// Follow lists and watches the objects until the context is done.
func (f Followed) Follow(ctx context.Context) {
	logger := Logger(ctx, f.Resource)
	// metav1.NamespaceAll also stands for resources without namespace.
	all := cache.NewListWatchFromClient(f.Client, f.Resource.Resource, metav1.NamespaceAll, fields.Everything())
	reflector := cache.NewReflectorWithOptions(all, f.Example, f.Store, reflectorOptions(f.Resource.Resource, &logger))

	// Like Reflector.Run, except for the log: a missing resource is not an error
	// and is logged once.
	delay := wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 16, Factor: 2, Jitter: 0.2}.
		DelayWithReset(clock.RealClock{}, 2*time.Minute)
	var logged *metav1.StatusReason
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (done bool, _ error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			if reason := apierrors.ReasonForError(err); f.Failed(err) || logged == nil || *logged != reason {
				logger.Info(f.Cannot, "reason", err)
				logged = &reason
			}
		}
		return false, nil
	})
}

// Logger returns the logger of a context, for what is about a resource.
func Logger(ctx context.Context, resource schema.GroupVersionResource) klog.Logger {
	return klog.FromContext(ctx).WithValues("resource", resource.GroupResource().String())
}

// None reports whether an error means that there are no objects for the reader: it need not
// wait for them.
func None(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

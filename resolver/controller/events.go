package controller

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/lru"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

const (
	// maxEvents bounds the workloads that are notified about one image.
	maxEvents = 5
	// maxNote is the API server's limit for the text of an event (bytes).
	maxNote = 1024
	// A namespace gets eventBurst events at once, and one each eventInterval after that; and as many
	// lines in the log.
	eventBurst    = 200
	eventInterval = 3 * time.Second
	// maxRecipients bounds the namespaces whose rates are remembered, two each.
	maxRecipients = 4096
)

// notifier notifies workloads, by events, which of their images are not resolved. A namespace
// learns what concerns its own pull secrets and what concerns everybody, nothing else.
type notifier struct {
	recorder events.EventRecorder
	// suppressed is called for each event that is too many for its namespace.
	suppressed func()

	mu     sync.Mutex
	limits *lru.Cache // namespace: *rate.Limiter
}

func newNotifier(recorder events.EventRecorder, suppressed func()) *notifier {
	return &notifier{recorder: recorder, suppressed: suppressed, limits: lru.New(maxRecipients)}
}

// brief returns what a reason means to the owner of a workload. It is the same whatever the
// details are, which are in the log: they would show what the resolver can reach.
func brief(reason string) string {
	switch reason {
	case v1alpha1.ReasonDenied:
		return "layer-resolver may not ask this registry, or not at its address; its log has the cause"
	case v1alpha1.ReasonUnauthorized:
		return "the registry requires credentials, or other ones"
	case v1alpha1.ReasonNotFound:
		return "the registry has no such repository, tag or digest"
	case v1alpha1.ReasonPlatformNotFound:
		return "the image is not built for the platform of any node"
	case v1alpha1.ReasonRateLimited:
		return "the registry limits how often it is asked; it is asked again later"
	case v1alpha1.ReasonInvalidManifest:
		return "the registry's answer is no manifest, or is larger than allowed"
	case v1alpha1.ReasonNotAccepted:
		return "the API server does not accept the object for it; the log of layer-resolver has the cause"
	case v1alpha1.ReasonTooMany:
		return "the namespace, or the cluster, has as many images as layer-resolver keeps"
	}
	return "the registry gives no usable answer"
}

// reportFailure notifies workloads why one of their images is not resolved.
func (n *notifier) reportFailure(image usage.Image, reason, message string, workloads ...corev1.ObjectReference) {
	// Events about the same two objects count as one, so the second is the image.
	about := &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifest", Name: v1alpha1.UnresolvedName(image.References[0]),
	}
	for _, workload := range workloads {
		n.warn(workload, about, "Layers of %s are not known to the scheduler (%s): %s", image.References[0], reason, message)
	}
}

// reportInvalid notifies a workload that it has an invalid image name.
func (n *notifier) reportInvalid(invalid usage.InvalidName, workload corev1.ObjectReference) {
	n.warn(workload, nil, "%.200q is no image name (%s): %.300s", invalid.Name, v1alpha1.ReasonInvalidReference, invalid.Err)
}

// warn sends an event about a workload; related is a nil interface if there is no
// second object.
func (n *notifier) warn(workload corev1.ObjectReference, related runtime.Object, format string, args ...any) {
	if !n.allowed(workload.Namespace) {
		n.suppressed()
		return
	}
	note := lookup.AtMost(maxNote, fmt.Sprintf(format, args...))
	n.recorder.Eventf(&workload, related, corev1.EventTypeWarning, "ImageNotResolved", "Resolve", "%s", note)
}

// logs reports whether a namespace may have another line in the log now. Others are for -v=1.
func (n *notifier) logs(namespace string) bool { return n.allowed("log " + namespace) }

// allowed reports whether a namespace may get another event now.
func (n *notifier) allowed(namespace string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	limiter, ok := n.limits.Get(namespace)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(eventInterval), eventBurst)
		n.limits.Add(namespace, limiter)
	}
	return limiter.(*rate.Limiter).Allow()
}

// reportFailure notifies workloads why an image is not resolved: how it went with the pull
// secrets of their namespace if these were tried, and else for everybody. What is known
// stays known if it cannot be confirmed.
func (r *Resolver) reportFailure(image usage.Image, workloads ...corev1.ObjectReference) {
	public := r.attempts.of(image)
	_, known := r.known(image)
	if public.Reason == "" || known != nil && known.Covers(r.nodes.clusterPlatforms()) {
		return
	}
	for _, workload := range workloads {
		reason, message := public.Reason, brief(public.Reason)
		own := r.asker.Tried(image.Key, workload.Namespace)
		switch {
		case !own.Opened.IsZero():
			continue
		case own.Reason != "":
			reason, message = own.Reason, cmp.Or(own.Message, brief(own.Reason))
		case own.Message != "": // none of them was tried, which may be why
			message += "; " + own.Message
		case reason == v1alpha1.ReasonUnauthorized && !r.asker.Credentials.Enabled():
			message += "; pull secrets are not read (--pull-secrets)"
		}
		r.notifier.reportFailure(image, reason, message, workload)
	}
}

// secretsChanged notifies the workloads of a namespace how it went with its pull secrets, which is new to it.
func (r *Resolver) secretsChanged(image usage.Image, namespace string, now lookup.SecretAttempt, refusals lookup.Refusals) {
	if now.Reason+now.Message != "" && r.attempts.of(image).Reason != "" { // or it is notified with the refusal
		r.reportFailure(image, r.usage.WorkloadsIn(image.Key, namespace, maxEvents)...)
	}
	if now.Reason != "" && r.notifier.logs(namespace) {
		r.log.Info("Not resolved with pull secrets", "image", image.Key, "namespace", namespace, "cause", refusals.Details())
	}
}

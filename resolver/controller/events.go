package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

const (
	// maxEvents bounds the workloads that are told about one image.
	maxEvents = 5
	// maxNote is the API server's limit for the text of an event (bytes).
	maxNote = 1024
)

// notifier tells workloads, by events, which of their images are not resolved.
type notifier struct {
	recorder events.EventRecorder
}

// reportFailure tells workloads why one of their images is not resolved.
func (n *notifier) reportFailure(image image, failure attempt, workloads ...corev1.ObjectReference) {
	// Events about the same two objects count as one, so the second is the image.
	about := &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImageManifest", Name: v1alpha1.UnresolvedName(image.references[0]),
	}
	for _, workload := range workloads {
		n.warn(workload, about, "Layers of %s are not known to the scheduler (%s): %s", image.references[0], failure.reason, failure.message)
	}
}

// reportInvalid tells a workload that it has an invalid image name.
func (n *notifier) reportInvalid(invalid invalidName, workload corev1.ObjectReference) {
	n.warn(workload, nil, "%.200q is no image name (%s): %.300s", invalid.name, v1alpha1.ReasonInvalidReference, invalid.err)
}

// warn sends an event about a workload; related is a nil interface if there is no
// second object.
func (n *notifier) warn(workload corev1.ObjectReference, related runtime.Object, format string, args ...any) {
	note := atMost(maxNote, fmt.Sprintf(format, args...))
	n.recorder.Eventf(&workload, related, corev1.EventTypeWarning, "ImageNotResolved", "Resolve", "%s", note)
}

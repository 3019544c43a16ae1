package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ImagePrefetch has nodes pull images before pods need them. layer-prefetcher works on it: in
// its namespace, with the pull secrets that are there. Like a Job, it ends: then it does nothing
// more until its spec changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=imageprefetches,singular=imageprefetch,scope=Namespaced,shortName=ipf,categories=layerlocality
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.status.nodesWanted`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.nodesReady`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.nodesFailed`
// +kubebuilder:printcolumn:name="Moved",type=integer,JSONPath=`.status.bytesMoved`,description="compressed bytes that nodes pulled"
// +kubebuilder:printcolumn:name="Saved",type=integer,JSONPath=`.status.bytesSaved`,description="those of them that pods then used"
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Complete")].message`
type ImagePrefetch struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ImagePrefetchSpec `json:"spec"`
	// +optional
	Status ImagePrefetchStatus `json:"status,omitempty"`
}

// ImagePrefetchSpec is which images come to which nodes.
//
// +kubebuilder:validation:XValidation:rule="has(self.workload) || has(self.images)",message="name images, a workload, or both"
// +kubebuilder:validation:XValidation:rule="has(self.workload) || has(self.nodeSelector)",message="without a workload, nodeSelector has to select nodes: {} selects all"
type ImagePrefetchSpec struct {
	// Workload has the images, pull secrets, service account and tolerations in its pod
	// template, and nodes that run it.
	// +optional
	Workload *WorkloadReference `json:"workload,omitempty"`
	// Images in place of those of the workload, as pods name them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Images []string `json:"images,omitempty"`
	// ImagePullSecrets of the namespace, besides those of the workload.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
	// NodeSelector selects nodes by their labels, in place of the nodes that run the workload.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// MaxNodes is how many of these nodes get the images, as a number or a percentage (rounded
	// up). Those that have most of the bytes come first. Default: all.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="at least 1, or 1% to 100%"
	MaxNodes *intstr.IntOrString `json:"maxNodes,omitempty"`
	// DeadlineSeconds is how long the nodes have from status.startTime on. What is not there by
	// then has failed.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	DeadlineSeconds int64 `json:"deadlineSeconds,omitempty"`
	// TTLSecondsAfterFinished is after how long an object that has ended is deleted. Default:
	// never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int64 `json:"ttlSecondsAfterFinished,omitempty"`
	// Paused: no further node begins.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// WorkloadReference names a workload of the same namespace.
type WorkloadReference struct {
	// APIVersion of its kind.
	// +optional
	// +kubebuilder:default=apps/v1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9.-]+/[a-z0-9]+$`
	APIVersion string `json:"apiVersion,omitempty"`
	// Kind is Deployment, StatefulSet, DaemonSet, or one of --workloads of layer-prefetcher.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ImagePrefetchStatus is how far it has come.
type ImagePrefetchStatus struct {
	// ObservedGeneration is that of the spec that the rest is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Images that it brings: it begins anew when the template of its workload has others.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=1024
	Images []string `json:"images,omitempty"`
	// StartTime is when it began with this spec, or when it was last resumed.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// NodesWanted, of which NodesReady have the images and NodesFailed do not get them.
	// +optional
	NodesWanted int32 `json:"nodesWanted"`
	// +optional
	NodesReady int32 `json:"nodesReady"`
	// +optional
	NodesFailed int32 `json:"nodesFailed"`
	// BytesMoved are the compressed bytes that nodes pulled for it, and BytesSaved those of them
	// that pods on these nodes then did not have to pull.
	// +optional
	BytesMoved int64 `json:"bytesMoved"`
	// +optional
	BytesSaved int64 `json:"bytesSaved"`
	// Nodes that are done, so that none is done twice: those that got something, and those that
	// failed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1000
	Nodes []PrefetchedNode `json:"nodes,omitempty"`
	// CompletionTime is when it ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Conditions: Complete is True when it has ended; its reason and message are why, or what
	// it waits for.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PrefetchedNode is what became of the images on a node.
type PrefetchedNode struct {
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Bytes that it pulled, compressed.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// Seconds that it took for that.
	// +optional
	Seconds int32 `json:"seconds,omitempty"`
	// UsedBytes are those of images that pods on the node then used: of the workload, if one is named.
	// +optional
	UsedBytes int64 `json:"usedBytes,omitempty"`
	// Wasted is set once no pod has used the others in a day, or before the object expired.
	// +optional
	Wasted bool `json:"wasted,omitempty"`
	// Attempts that failed.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// Reason and Message are why the last attempt failed.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// Time of the last change.
	Time metav1.Time `json:"time"`
}

// Labels and annotations of layer-prefetcher.
const (
	// PrefetchSourceLabel of an ImagePrefetch is which source made it. Users' objects have none.
	PrefetchSourceLabel = "layerlocality.io/prefetch-source"
	// PrefetchPodLabel is on all pods that pull, with the source of their ImagePrefetch as value.
	PrefetchPodLabel = "layerlocality.io/prefetch-pod"
	// PrefetchNodeAnnotation of such a pod states where it is to pull, and PrefetchBytesAnnotation how many compressed
	// bytes were missing there.
	PrefetchNodeAnnotation  = "layerlocality.io/prefetch-node"
	PrefetchBytesAnnotation = "layerlocality.io/prefetch-bytes"
)

// MaxPrefetchedNodes is how many nodes the status of an ImagePrefetch has at most.
const MaxPrefetchedNodes = 1000

// ConditionComplete of an ImagePrefetch, and its reasons.
const (
	ConditionComplete = "Complete"

	// ReasonComplete: all nodes are ready.
	ReasonComplete = "Complete"
	// ReasonFailed: some failed, all others are ready.
	ReasonFailed = "Failed"
	// ReasonDeadline: time ran out.
	ReasonDeadline = "DeadlineExceeded"
	// ReasonPulling: nodes pull.
	ReasonPulling = "Pulling"
	// ReasonWaiting: for room in a budget, for the manifest of an image, or for a node that suits.
	ReasonWaiting = "Waiting"
	// ReasonPaused: by its spec.
	ReasonPaused = "Paused"
	// ReasonTurnedOff: by the label of the namespace.
	ReasonTurnedOff = "TurnedOff"
	// ReasonNoWorkload: there is no such workload.
	ReasonNoWorkload = "NoWorkload"
	// ReasonInvalid: an image name or the selector is not valid.
	ReasonInvalid = "Invalid"
)

// ImagePrefetchList is a list of ImagePrefetches.
//
// +kubebuilder:object:root=true
type ImagePrefetchList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ImagePrefetch `json:"items"`
}

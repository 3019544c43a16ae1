package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ImageManifest has the layers of one image manifest and the image references
// that point to it. Objects of resolved manifests are named after the
// digest ("sha256-..."); one to which more references point than an object holds has
// further objects ("sha256-...-2"). A reference that was never resolved has an object of
// its own ("unresolved-..."), without digest, whose condition has the reason.
//
// It is a record that the resolver alone writes, in one request, so there is no
// status subresource. Deleting an object makes the resolver ask again.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=imf,categories=layerlocality
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.status.references[0].name`
// +kubebuilder:printcolumn:name="Platform",type=string,JSONPath=`.spec.platform`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.spec.size`,description="compressed bytes of all layers"
// +kubebuilder:printcolumn:name="Resolved",type=string,JSONPath=`.status.conditions[?(@.type=="Resolved")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Resolved")].reason`
// +kubebuilder:printcolumn:name="Confirmed",type=date,JSONPath=`.status.references[0].lastConfirmed`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.status=="False")].message`
type ImageManifest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the manifest states. It never changes: other content has
	// another digest.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a manifest does not change: other content has another digest"
	Spec ImageManifestSpec `json:"spec"`
	// Status is what points to the manifest, and how asking for it went.
	// +optional
	Status ImageManifestStatus `json:"status,omitempty"`
}

// ImageManifestSpec is what a manifest states.
//
// +kubebuilder:validation:XValidation:rule="has(self.digest) || !has(self.layers)",message="layers need a digest"
type ImageManifestSpec struct {
	// Digest of the manifest of one platform, never of an index. Empty if the
	// reference was not resolved.
	// +optional
	// +kubebuilder:validation:MaxLength=135
	// +kubebuilder:validation:Pattern=`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`
	Digest string `json:"digest,omitempty"`
	// MediaType of the manifest.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	MediaType string `json:"mediaType,omitempty"`
	// Platform that an index names for the manifest, as os/architecture[/variant].
	// Empty if no index led here: a manifest alone does not state it, and container
	// runtimes do not check it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Platform string `json:"platform,omitempty"`
	// Size is the sum of the layers in compressed bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Size int64 `json:"size,omitempty"`
	// Layers in the order of the manifest, the base first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	Layers []ImageLayer `json:"layers,omitempty"`
}

// ImageLayer is a layer as the manifest describes it.
type ImageLayer struct {
	// Digest of the compressed layer.
	// +kubebuilder:validation:MaxLength=135
	// +kubebuilder:validation:Pattern=`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`
	Digest string `json:"digest"`
	// Size in compressed bytes. A claim of the manifest's author.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1099511627776
	Size int64 `json:"size"`
}

// ImageManifestStatus is what points to a manifest, and how asking went.
type ImageManifestStatus struct {
	// References that point to the manifest, directly or through an index.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	References []ImageReference `json:"references,omitempty"`
	// Conditions: Resolved reports whether the content is known, Confirmed whether
	// the last question about a tag was answered.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Failures in a row of asking for the references.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Failures int32 `json:"failures,omitempty"`
	// RetryTime is when the registry is asked again after a failure.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
}

// ImageReference is an image reference that points to a manifest.
type ImageReference struct {
	// Name is the reference in full: docker.io/library/busybox:1.36, or with a
	// digest docker.io/library/busybox@sha256:...
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Name string `json:"name"`
	// Digest that the registry has for the reference: of an index, or of the
	// manifest itself. Empty if it was not resolved.
	// +optional
	// +kubebuilder:validation:MaxLength=135
	Digest string `json:"digest,omitempty"`
	// Platforms of nodes for which the index was looked through. Empty if there is
	// no index.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	Platforms []string `json:"platforms,omitempty"`
	// LastConfirmed is when the registry last answered that the reference points here.
	// +optional
	LastConfirmed *metav1.Time `json:"lastConfirmed,omitempty"`
	// UnusedSince is when the last workload that named the reference went. Empty while
	// one names it.
	// +optional
	UnusedSince *metav1.Time `json:"unusedSince,omitempty"`
	// Private is set if only pull secrets of a namespace open the image
	// (--publish-private).
	// +optional
	Private bool `json:"private,omitempty"`
}

// Condition types.
const (
	// ConditionResolved: the manifest is known.
	ConditionResolved = "Resolved"
	// ConditionConfirmed: the registry answered when it was last asked whether a
	// tag still points here. What was known stays in use until it answers.
	ConditionConfirmed = "Confirmed"
)

// Reasons of conditions, and of events on workloads.
const (
	// ReasonResolved: all is well.
	ReasonResolved = "Resolved"
	// ReasonInvalidReference: the name is none that a container runtime takes.
	ReasonInvalidReference = "InvalidReference"
	// ReasonDenied: the policy does not let the resolver ask this registry, or not
	// at the address it has. No object is made for it: events report it, and so does the
	// condition Confirmed of what was resolved before.
	ReasonDenied = "Denied"
	// ReasonUnauthorized: the registry requires credentials, or others.
	ReasonUnauthorized = "Unauthorized"
	// ReasonNotFound: the registry has no such repository, tag or digest.
	ReasonNotFound = "NotFound"
	// ReasonPlatformNotFound: the index has no manifest for any node of the cluster.
	ReasonPlatformNotFound = "PlatformNotFound"
	// ReasonRateLimited: the registry asks to come back later.
	ReasonRateLimited = "RateLimited"
	// ReasonUnavailable: the registry does not answer, not in time or with an error.
	ReasonUnavailable = "RegistryUnavailable"
	// ReasonTooMany: the workloads' namespace, or the cluster, has as many images as
	// the resolver keeps. Only in events.
	ReasonTooMany = "TooManyImages"
	// ReasonNotAccepted: the API server refuses the object with the layers.
	ReasonNotAccepted = "NotAccepted"
	// ReasonInvalidManifest: what the registry sent is no manifest, not the one asked
	// for, or larger than allowed.
	ReasonInvalidManifest = "InvalidManifest"
)

// ImageManifestList is a list of ImageManifests.
//
// +kubebuilder:object:root=true
type ImageManifestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ImageManifest `json:"items"`
}

// What a manifest and an object hold at most; the schema enforces the same.
const (
	// MaxLayers of an image, the same limit as in CRI-O, kubelet and scheduler. The
	// overlay driver of containers-storage runs images of at most 500 layers
	// (go.podman.io/storage/drivers/overlay, maxDepth).
	MaxLayers = 512
	// MaxReferences in an object. Further ones are in further objects of the manifest.
	MaxReferences = 64
	// MaxPlatforms of nodes that images are resolved for, MaxPlatformLength how long each is.
	MaxPlatforms      = 16
	MaxPlatformLength = 64
)

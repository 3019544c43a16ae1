package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the API, and the resources that its objects are.
var (
	GroupVersion           = schema.GroupVersion{Group: "layerlocality.io", Version: "v1alpha1"}
	ImageManifestsResource = GroupVersion.WithResource("imagemanifests")
	NodeLayersResource     = GroupVersion.WithResource("nodelayers")
)

var schemeBuilder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ImageManifest{}, &ImageManifestList{}, &NodeLayers{}, &NodeLayersList{}, &ImagePrefetch{}, &ImagePrefetchList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
})

// AddToScheme adds the types to a scheme.
var AddToScheme = schemeBuilder.AddToScheme

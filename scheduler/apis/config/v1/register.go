package v1

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// SchemeGroupVersion is the group and version users write.
var SchemeGroupVersion = schema.GroupVersion{Group: kubescheduler.GroupName, Version: "v1"}

var (
	// localSchemeBuilder is what the generated conversions register with.
	localSchemeBuilder = &SchemeBuilder
	// SchemeBuilder registers the v1 types, their conversions and defaults.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes, addDefaultingFuncs)
	// AddToScheme adds the v1 types to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &LayerLocalityArgs{}, &QosAwareArgs{}, &SafeArgs{}, &PackingArgs{}, &CongestionArgs{})
	return nil
}

package config

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// SchemeGroupVersion is the group of all plugin arguments: kube-scheduler
// looks there for the arguments of every plugin.
var SchemeGroupVersion = schema.GroupVersion{Group: kubescheduler.GroupName, Version: runtime.APIVersionInternal}

var (
	// SchemeBuilder registers the internal types.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the internal types to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &LayerLocalityArgs{}, &QosAwareArgs{}, &SafeArgs{}, &PackingArgs{}, &CongestionArgs{})
	return nil
}

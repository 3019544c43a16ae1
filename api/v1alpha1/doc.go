// Package v1alpha1 is the API group layerlocality.io: what images consist of, as
// a registry has them, for schedulers to read before any node has pulled them;
// and what nodes hold, as an agent on them reports it.
//
// It imports nothing but apimachinery, because the scheduler is compiled with
// exactly the dependencies of Kubernetes.
//
// +kubebuilder:object:generate=true
// +groupName=layerlocality.io
package v1alpha1

// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=github.com/layer-locality/layer-locality/scheduler/apis/config
// +k8s:defaulter-gen=TypeMeta
// +groupName=kubescheduler.config.k8s.io

// Package v1 holds the arguments of the plugins as users write them in a
// KubeSchedulerConfiguration.
package v1

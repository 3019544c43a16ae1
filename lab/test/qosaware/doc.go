// Package qosaware tests the plugin QosAware on a real cluster, with kubelets, controllers and
// pulls.
package qosaware

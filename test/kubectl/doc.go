// Package kubectl tests kubectl layers as users run it: the program, on a real apiserver with a
// real kube-scheduler. Nodes have no kubelets; what they would say is written for them.
package kubectl

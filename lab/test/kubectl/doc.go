// Package kubectl tests kubectl layers as users run it: the program, on a real apiserver with a
// real kube-scheduler. Nodes have no kubelets; the tests write what these would report.
package kubectl

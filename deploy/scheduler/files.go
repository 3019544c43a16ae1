// Package scheduler has manifests of kube-scheduler with this repository's plugins, for
// programs that install a part of them without kustomize.
package scheduler

import _ "embed"

// QosAwareRBAC is what QosAware needs beyond the rights of a kube-scheduler, given to the
// service account of second-scheduler.
//
//go:embed qosaware/rbac.yaml
var QosAwareRBAC []byte

// QosAwareUser gives the same to a cluster's own kube-scheduler.
//
//go:embed qosaware/user.yaml
var QosAwareUser []byte

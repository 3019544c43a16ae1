// Package extender has the manifests of layer-extender, for programs that install a part of
// them without kustomize.
package extender

import _ "embed"

// RBAC is who layer-extender is and what it may do. Its namespace is kube-system.
//
//go:embed base/rbac.yaml
var RBAC []byte

// Package resolver has the manifests of layer-resolver, for programs that
// install a part of them without kustomize.
package resolver

import _ "embed"

// CRD is the CustomResourceDefinition of ImageManifest.
//
//go:embed crd/layerlocality.io_imagemanifests.yaml
var CRD []byte

// RBAC is who the resolver is and what it may do. Its namespace is kube-system.
//
//go:embed base/rbac.yaml
var RBAC []byte

// Readers lets a kube-scheduler that is a static pod read ImageManifests.
//
//go:embed base/readers.yaml
var Readers []byte

// PullSecretsRole lets the resolver read pull secrets where it is bound to it.
//
//go:embed components/pull-secrets/clusterrole.yaml
var PullSecretsRole []byte

// PullSecretsBinding binds it in the namespace that it is applied in.
//
//go:embed components/pull-secrets/rolebinding.yaml
var PullSecretsBinding []byte

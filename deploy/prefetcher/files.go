// Package prefetcher has the manifests of layer-prefetcher, for programs that install a part of them without kustomize.
package prefetcher

import _ "embed"

// CRD is the CustomResourceDefinition of ImagePrefetch.
//
//go:embed crd/layerlocality.io_imageprefetches.yaml
var CRD []byte

// RBAC is who layer-prefetcher is and what it may do. Its namespace is kube-system.
//
//go:embed base/rbac.yaml
var RBAC []byte

// PriorityClass is that of pods that pull.
//
//go:embed base/priorityclass.yaml
var PriorityClass []byte

// Policy confines the pods that layer-prefetcher may create and delete to those that pull.
//
//go:embed base/policy.yaml
var Policy []byte

// PodImage is the image of pods that pull, by default: the only one that Policy allows.
const PodImage = "registry.k8s.io/pause:3.10.2"

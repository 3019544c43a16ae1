// Package agent has the manifests of layer-agent, for programs that install a part of them
// without kustomize.
package agent

import _ "embed"

// CRD is the CustomResourceDefinition of NodeLayers.
//
//go:embed crd/layerlocality.io_nodelayers.yaml
var CRD []byte

// RBAC is who the agent is and what it may do. Its namespace is kube-system.
//
//go:embed base/rbac.yaml
var RBAC []byte

// Readers lets a kube-scheduler that is a static pod read NodeLayers.
//
//go:embed base/readers.yaml
var Readers []byte

// Policy lets an agent write for its own Node only.
//
//go:embed base/policy.yaml
var Policy []byte

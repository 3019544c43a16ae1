// Package kubectllayers has the manifests of the rights for users of kubectl layers, for
// programs that install them without kustomize.
package kubectllayers

import _ "embed"

// Viewer is what users read.
//
//go:embed viewer.yaml
var Viewer []byte

// SchedulerReader is how users read what the scheduler remembers.
//
//go:embed scheduler-reader.yaml
var SchedulerReader []byte

// Policy confines to which pods users may forward ports.
//
//go:embed policy.yaml
var Policy []byte

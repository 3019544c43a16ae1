// Package conformance runs Kubernetes' own conformance tests on a local cluster, all stock and all patched, and compares
// the outcomes. Its test has the build tag e2e and needs root. It runs for hours.
package conformance

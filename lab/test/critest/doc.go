// Package critest runs critest, the conformance tests for container runtimes of
// sigs.k8s.io/cri-tools, against the patched CRI-O and, with FULL=1, against stock CRI-O and
// containerd. Its test has the build tag e2e and needs root.
package critest

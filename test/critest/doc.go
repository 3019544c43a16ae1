// Package critest runs critest, the conformance tests for container runtimes of
// sigs.k8s.io/cri-tools, against a stock and a patched CRI-O and, with FULL=1, against containerd. Its test has
// the build tag e2e and needs root.
package critest

// Package layout checks the folders of this repository: which are built against
// the patched Kubernetes, which of them packages need, that every Go package is
// documented, and that links in documents work. depguard (.golangci.yml) checks
// who may import whom.
package layout

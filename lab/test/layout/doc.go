// Package layout checks the folders of this repository: which are built against
// the patched Kubernetes, which of them packages need, that every Go package is
// documented, that links in documents work, and that workflows only call make and
// scripts. depguard (.golangci.yml) checks who may import whom. It also runs the part of
// scripts/demo.sh that chooses a release.
package layout

// Package nodepatch tests patches of Nodes on a patched kube-apiserver.
package nodepatch

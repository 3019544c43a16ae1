// Package manifests checks what deploy/ ships without a cluster: the output of
// kustomize, the rights it gives, and its documentation.
package manifests

// deployed is the folder of what users apply.
const deployed = "../../../../deploy"

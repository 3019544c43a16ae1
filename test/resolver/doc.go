// Package resolver tests on a real cluster, with real pulls over links of
// 100 Mbit/s, what layer-resolver is good for and what it survives:
//
//   - a pod of an image that no node has pulled goes where its base is, and so does
//     a rolling update to a tag that no node has pulled
//   - private images, by the imagePullSecrets of those who use them
//   - registries that are down, slow, limit, lie or redirect to where nobody may
//     go: pods are scheduled as on a healthy cluster
//
// The resolver has the rights of deploy/resolver and no others. It needs root and
// the build tag e2e; the cluster is removed in the end, whatever happens.
package resolver

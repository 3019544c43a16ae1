// Package resolver tests on a real cluster, with real pulls over links of 100
// Mbit/s, what layer-resolver achieves and which faults it survives:
//
//   - a pod with an image that no node has pulled goes where its base is, and so
//     does a rolling update to a tag that no node has pulled
//   - private images, with the imagePullSecrets of the workloads that use them
//   - registries behind a proxy with a certificate of a private authority, with a
//     quota, and with credentials of a plugin of the kubelet
//   - registries that are down or slow, limit requests, lie or redirect to
//     forbidden addresses: pods are scheduled as on a healthy cluster
//
// The resolver has only the rights of deploy/resolver. The tests need root and
// the build tag e2e; the cluster is always removed at the end.
package resolver

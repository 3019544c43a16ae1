// Package chaos kills components of a cluster at random, with SIGKILL, while pods come and go, and looks from outside
// whether what the cluster reports is true: see Rules in rules.go.
//
// Faults and pods follow from a seed, which is printed:
//
//   - etcd, kube-apiserver, kube-controller-manager, kube-scheduler, layer-resolver, and on each node kubelet, CRI-O and
//     layer-agent are killed, and started again as systemd or the kubelet would
//   - links of nodes are cut, or slow
//   - images that no container uses are removed
//   - a node's disk is filled above the threshold of the kubelet's garbage collection, for longer than its period
//
// Clocks are not stepped: the nodes share the host's.
//
// Half of the pods are placed by the default profile and half by the one with LayerLocality, in pairs. The variables
// CHAOS_SEED, CHAOS_SECONDS (3600), CHAOS_PODS (2000 an hour) and CHAOS_BOUND (10, seconds that a pod may wait longer than
// its counterpart) change a run. The test has the build tag e2e and needs root.
package chaos

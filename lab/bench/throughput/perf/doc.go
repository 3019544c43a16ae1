// Package perf measures how many pods a second kube-scheduler places, with
// Kubernetes' own scheduler_perf: an apiserver and a scheduler in one process,
// an etcd beside them, and nodes and pods that exist only as objects.
//
// It is a benchmark in the workspace with the patched Kubernetes. One run
// measures one profile; `lab/run bench throughput` runs the profiles in
// turn.
package perf

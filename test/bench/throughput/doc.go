// Package throughput measures how many pods a second kube-scheduler places, with
// Kubernetes' own scheduler_perf: an apiserver and a scheduler in one process, an
// etcd beside them, nodes and pods that nobody runs.
//
// It is a benchmark of the workspace with the patched Kubernetes, and one run of
// it measures one profile: `go run ./cmd/bench throughput` runs it in turns.
package throughput

// Package sim plays a workload on a simulated cluster. The decisions are real:
// kube-scheduler's framework and plugins and LayerLocality make them from NodeInfo
// snapshots of kube-scheduler's cache. Time, links, disks, kubelets and the resolver
// are simulated. It needs the patched Kubernetes (build tag imagelayers).
package sim

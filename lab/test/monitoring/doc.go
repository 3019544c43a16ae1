// Package monitoring tests what deploy/monitoring ships with a real Prometheus, on a cluster with
// layer-agent on stock and patched nodes, layer-resolver, and the scheduler as a Deployment. Pods
// are chosen and scraped by the shipped monitors, with their tokens.
// Debian's Prometheus cannot ask an apiserver for pods: the test does that for it.
//
//   - after three minutes of pods, ten with FULL=1, each query of each panel has data, and the page
//     of metrics has those that are served
//   - with FULL=1 the causes of alerts are made; each fires, and ends when its cause is taken away.
//     The rules are the shipped ones with shorter times
//
// The tests need root, a Prometheus server (Debian: prometheus) and the build tag e2e; the cluster is
// always removed at the end.
package monitoring

// Package agents tests the agents of layer-extender besides layers on a real cluster: behind a
// stock kube-scheduler, and as plugins of ours. The tests have the build tag e2e and need root
// and a Prometheus server (Debian: prometheus).
package agents

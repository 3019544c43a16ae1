// Package extender tests layer-extender with a stock kube-scheduler on a real cluster: no
// scheduler of ours runs. A second stock kube-scheduler, without an extender, is what it is
// compared with. The tests have the build tag e2e and need root.
package extender

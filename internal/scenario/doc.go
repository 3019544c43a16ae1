// Package scenario is what the demo and the tests of scheduler and resolver have in
// common: profiles to compare, pods on a real cluster, and what became of them:
// the node, the time of the pull, the bytes that came over its link.
package scenario

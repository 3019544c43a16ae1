// Package scenario has what the demo and the tests of scheduler and resolver share:
// profiles to compare, pods on a real cluster, and their outcome: the node, the
// time of the pull, the bytes pulled over the node's link.
package scenario

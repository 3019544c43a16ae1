// Package index answers, for all nodes in one pass, how many bytes of a pod's
// images a node has, how many are on their way to it, and how long the queue
// of its link is.
//
// It is fed with what sources report (SetImages) and with pods that were placed
// (Reserve), in proportion to what changed, and never rebuilt. Its answers
// depend on the reports it holds and not on the order in which they came, so
// that a scheduler that restarts decides as before:
//
//   - An image consists, per platform, of the layers most nodes of that platform
//     report under its name; among equals, of those with the smaller digests. A
//     node that reports other layers under the name, or none, still has the
//     image: it holds something by that name, and the kubelet will use it.
//   - A layer has the size most distinct images claim for it; among equals, the
//     smaller.
//   - An image that no node reports layers of is one indivisible piece.
//
// Sizes are compressed bytes. The size NodeStatus gives for a whole image is
// uncompressed: for an indivisible piece it is scaled by the ratio of compressed
// to uncompressed bytes of the images known with layers, and taken as it is
// where there are none, so the two are never added up as if they were one unit.
package index

// Package index answers, for all nodes in one pass, how many bytes of a pod's
// images a node has, how many are on their way to it, and how long the queue
// of its link is.
//
// It takes the reports of sources (SetImages) and the pods that were placed
// (Reserve). An update costs in proportion to what changed; the index is never
// rebuilt. Its answers depend on the reports it holds and not on their order, so
// that a scheduler decides after a restart as before:
//
//   - Per platform, an image consists of the layers that most nodes of that
//     platform report under its name. In a tie, the smaller digests win. A node
//     that reports other layers under the name, or none, still has the image: it
//     holds something of that name, and the kubelet will use it.
//   - Nodes that use a layer again only above the same layers (SetChains) are apart from
//     the others of their platform, with keys that stand for a layer and all below it.
//   - A layer has the size that most distinct images report for it. In a tie, the
//     smaller size wins.
//   - An image whose layers no node reports is one indivisible piece.
//
// Sizes are compressed bytes. The size NodeStatus gives for a whole image is uncompressed
// with CRI-O and compressed with containerd (Image.Compressed). An indivisible piece with an
// uncompressed size is scaled by the ratio of compressed to uncompressed bytes of the images
// that state both. Without such images it is taken as it is. So the two units are never
// added up.
package index

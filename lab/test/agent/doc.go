// Package agent tests layer-agent as deploy/agent installs it, on a real cluster where CRI-O,
// kubelet and control plane are stock and only the scheduler is ours:
//
//   - NodeLayers have every digest and size of every image on a node, as the registry's
//     manifests state them, soon after a pull and a removal
//   - pods go where their layers are, on nodes with more images than NodeStatus names, and the
//     bytes that the scheduler calls missing are those that the registry sends
//   - agents are ended and evicted, two are on a node, runtimes are killed in the middle of a pull,
//     Nodes are made again, and all of it is removed: nothing is left
//   - in all that, agents ask the apiserver for what their role names, and for nothing else
//
// The tests need root and the build tag e2e; the cluster is always removed at the end.
package agent

// Package locality knows which layers are on which node, which are on their way
// there, and how much that is worth for a pod.
//
// A Tracker follows Nodes and Pods through informers and asks further sources; a
// Profile rates nodes with the arguments of one scheduler profile. Nothing here
// knows a scheduling cycle: package layerlocality is the plugin of kube-scheduler,
// and other hosts can use the same knowledge.
package locality

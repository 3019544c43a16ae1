// Package locality follows which layers are on which node and which are on their way
// there, and rates how much that is worth for a pod.
//
// A Tracker follows Nodes and Pods through informers and asks further sources; a
// Profile rates nodes with the arguments of one scheduler profile. Nothing here
// depends on a scheduling cycle: package layerlocality is the plugin of
// kube-scheduler, and other hosts can use the same data.
package locality

// Package controller keeps the ImageManifests of a cluster: it follows which image
// references are in use, asks registries about them when it has to, and writes
// what they answer.
//
// The Resolver decides. It starts in resolver.go, follows changes in the cluster in
// handlers.go, works on an image in work.go, and removes what is unused in collect.go.
// What it decides by is in packages workloads, usage, queue and store, and in
// parts of its own. It asks registries by package lookup, which knows the pull secrets:
//
//	mirrors.go      mirrors of registries that the cluster states
//	nodes.go        platforms and registries of the nodes
//	attempts.go     how the last attempt at an image ended, and when to try again
//	backlog.go      answers that the API server did not take yet
//	due.go          what is known about an image, and what is due about it
//	enqueue.go      which images come into the queues (package queue), and when
//	events.go       events about workloads
//	metrics.go      what is counted
//
// Each has a lock of its own. The Resolver calls them. The queues call it back to work on an image,
// lookup to notify a namespace of its pull secrets, and the store to have an image asked for again.
// Only attempts holds its lock while it calls another one, the store.
package controller

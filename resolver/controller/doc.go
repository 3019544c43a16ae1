// Package controller keeps the ImageManifests of a cluster: it knows which image
// references are in use, asks registries about them when it has to, and writes
// what they answer.
//
//	workloads.go    informers of pods, templates and nodes, and what is kept of them
//	usage.go        which references are in use, by what, with which pull secrets
//	store.go        what the ImageManifests say; every write goes through it
//	lanes.go        a queue for each registry, so that none delays another
//	resolver.go     what has to be asked when, and what an answer changes
//	credentials.go  keychains from pull secrets
package controller

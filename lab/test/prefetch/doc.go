// Package prefetch tests on a real cluster, with both runtimes, that nodes pull images ahead, as ImagePrefetches ask for and as a rollout
// has layer-prefetcher do by itself, and whose a private image is then. It has only the rights of deploy/prefetcher. The tests need root
// and the build tag e2e.
package prefetch

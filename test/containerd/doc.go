// Package containerd tests what layer-agent reads of a real containerd, whose CRI pulls from a
// registry on this machine:
//
//   - every digest and size is as in the registry's manifests
//   - what a node lacks of an image, by what was read, is what its next pull takes from the
//     registry: blobs kept or dropped after unpacking, in every order of pulls
//   - pulls, removals and restarts are followed
//
// The tests need root and the build tag e2e, and no network but loopback. Nothing is left of
// them.
package containerd

// Package containerd tests what layer-agent reads of a real containerd, whose CRI pulls from a
// registry on this machine:
//
//   - every digest and size is as in the registry's manifests, of images in every format
//   - what a node lacks of an image, by what was read, is what its next pull takes from the
//     registry: blobs kept or dropped after unpacking, in every order of pulls
//   - pulls, removals and restarts are followed
//
// The containerd is the one of the local cluster, with FULL=1 also an older and a newer one. It is
// also configured as k3s does, and in the first test as in the nodes of kind.
//
// The tests need root and the build tag e2e, and no network but loopback and what downloads
// kind's module. Nothing is left of them.
package containerd

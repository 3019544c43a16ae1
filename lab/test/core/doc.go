// Package core tests the core of the project on one real cluster, in minutes: layers over CRI and in the Node,
// the placement of pods, images that no node has pulled, restarts. The other packages of test go further.
package core

// Package livetest is what the tests on a real cluster have in common: a
// cluster for the whole package (Main), images in every format (Formats), the
// layers of an image according to its registry (FromRegistry), and the layers
// that CRI-O, a Node and a NodeLayers report, for comparison.
//
// The registry is read with a different implementation than the one under test,
// and again for every comparison.
package livetest

// Package livetest is what the tests on a real cluster have in common: a
// cluster for the whole package (Main), the layers of an image as its registry
// states them (FromRegistry), and the same as CRI-O and a Node report them, to
// be compared.
//
// The registry's side is read with another implementation than the one under
// test, and for every comparison anew.
package livetest

// Package bats runs CRI-O's own tests for bats that touch images, with the stock binary and with
// the patched one. Its test has the build tag e2e and needs root.
package bats

// Package imagegc is the end-to-end test of garbage collection that counts what removing an
// image frees (docs/image-gc.md): nodes whose images are on a small file system.
package imagegc

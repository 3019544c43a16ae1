// Package tenants has pods of several tenants start from private images on one node at once, and
// compares who gets an image, and what the kubelet notes about it, with a node with stock CRI-O.
package tenants

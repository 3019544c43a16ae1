// Package crio measures what the layers in ListImages cost: a stock and a
// patched CRI-O take turns on one store of images that were really pulled.
package crio

// Package layershare pulls several images on a common base at once, into real nodes, and
// counts what comes over their links.
package layershare

// Package report tests how soon a patched node reports an image that it has pulled.
package report

// Package render writes the configuration files of a cluster's components and returns their command lines. It starts
// nothing.
package render

// Package template follows the README of scheduler/template. lab/test/demos has what that makes place a pod.
package template

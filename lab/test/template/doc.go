// Package template follows the README of scheduler/template in a copy of the repository: its
// steps make another plugin of kube-scheduler and agent of layer-extender.
package template

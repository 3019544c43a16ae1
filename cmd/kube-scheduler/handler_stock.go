//go:build !imagelayers

package main

import (
	"net/http"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// debugHandler does nothing: stock kube-scheduler has no place for handlers of
// plugins, and a port of our own would have no authorization.
func debugHandler(string, http.Handler) []app.Option { return nil }

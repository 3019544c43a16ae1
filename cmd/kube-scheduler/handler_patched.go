//go:build imagelayers

package main

import (
	"net/http"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// debugHandler serves the handler at the path on the secure port of
// kube-scheduler, behind its authentication and authorization.
func debugHandler(path string, handler http.Handler) []app.Option {
	return []app.Option{app.WithHandler(path, handler)}
}

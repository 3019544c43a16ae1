//go:build !imagelayers

package main

import (
	"net/http"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// debugHandler does nothing: stock kube-scheduler does not support handlers of
// plugins, and a separate port would have no authorization.
func debugHandler(string, http.Handler) []app.Option { return nil }

// Package oldserver tests our kube-scheduler on apiservers that work as older ones do.
package oldserver

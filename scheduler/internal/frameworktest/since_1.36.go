//go:build !kubernetes1.35

package frameworktest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Signature returns that of a pod; nil if a plugin gives none.
func (f *Framework) Signature(t testing.TB, pod *v1.Pod) fwk.PodSignature {
	return f.SignPod(t.Context(), pod)
}

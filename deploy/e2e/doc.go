// Package e2e applies what deploy/ ships to a real cluster, as a user would:
//
//	scripts/test.sh e2e
//	go test -tags e2e -count=1 ./deploy/e2e/
//
// It needs root, the binaries in _build/bin, and buildah.
package e2e

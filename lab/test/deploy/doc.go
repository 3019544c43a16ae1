// Package deploy applies what deploy/ ships to a real cluster, as a user would:
//
//	scripts/test.sh deploy
//	go -C lab test -tags e2e -count=1 ./test/deploy/
//
// It needs root, the binaries in _build/bin, and buildah.
package deploy

// deployed is the folder of what users apply.
const deployed = "../../../deploy"

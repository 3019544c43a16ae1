// Package demos follows the texts of demos/ word for word on the local cluster:
//
//	scripts/test.sh deploy
//	go -C lab test -tags e2e -count=1 -v ./test/demos/ -run TestTexts/image-locality
//
// It needs root and the binaries in _build/bin. The blocks of a text are read, run and
// compared by package console; the images that the texts pull from Docker Hub are pushed by
// command hub to the registry that stands in for it.
package demos

// Package cluster tests package lab/cluster through its public API, and
// the command localcluster. Real clusters start, are changed while they run,
// and leave nothing behind. The tests need root and the build tag e2e:
//
//	scripts/test.sh nodes
//	go -C lab test -tags e2e -count=1 ./test/cluster/ -run TestAddon
package cluster

// Package e2e follows image layers from the registry through CRI-O and the
// kubelet to the Node, on a real cluster and with real pulls:
//
//	scripts/test.sh nodes
//	go -C lab test -tags e2e -count=1 ./test/e2e/ -run TestFormats
//
// It needs root and the binaries in _build/bin. All tests share one cluster of
// three nodes with the feature gate on; each has a node of its own:
//
//	n1  TestFormats    every kind of image; then the kubelet's limits
//	n2  TestLifecycle  upgrade from stock, restarts, crashes, removal, kill switch
//	n3  TestScale      300 images, and no status write without a change
package e2e

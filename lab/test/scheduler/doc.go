// Package scheduler tests on a real cluster, with real pulls over links of
// 100 Mbit/s, where the plugin LayerLocality sends pods:
//
//	scripts/test.sh placement
//	go -C lab test -tags e2e -count=1 -v ./test/scheduler/ -run TestAncestor
//
// It needs root and the binaries in _build/bin. With -v, every test prints what
// it compared. Both sides of a comparison are profiles of one kube-scheduler,
// the one with the plugin: LayerLocality against upstream's default plugins,
// with the same fix for equal scores. Figures of the unfixed behaviour beside
// them are from the stock binary.
//
// Placements and bytes are what the tests check; seconds are only printed.
package scheduler

// Package skew tests patched and stock components of Kubernetes together, on
// real clusters: what happens to the layers in a Node, and to everything else
// in it, during an upgrade, a downgrade and a rollback.
//
//	scripts/test.sh skew
//	go -C lab test -tags e2e -count=1 ./test/skew/ -run TestUpgrade
//
// It needs root and the binaries in _build/bin. Three clusters run side by side:
//
//	skew-refusal  TestRefusal: apiservers that keep no layers, counted in the audit log
//	skew-losses   TestLosses: layers that are kept and gone later
//	skew-upgrade  TestUpgrade: all other cases
//
// docs/upgrade.md describes the same.
package skew

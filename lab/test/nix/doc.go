// Package nix tests CRI-O as flake.nix builds it: CRI-O pulls an image and reports
// its layers.
//
//	lab/test/nix/run.sh
//	go -C lab test -tags e2e -count=1 ./test/nix/ -result ./result
//
// It needs root and the tools in _build/bin/tools. run.sh tests everything else
// of flake.nix and nix/.
package nix

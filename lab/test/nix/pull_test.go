//go:build e2e

package nix

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/cluster/images"
	"github.com/layer-locality/layer-locality/lab/test/livetest"
)

var (
	result = flag.String("result", "", "folder with the bin/crio and bin/pinns to test")
	node   *cluster.Node
	c      *cluster.Cluster
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *result == "" {
		fmt.Fprintln(os.Stderr, "nix: -result names no folder to test; lab/test/nix/run.sh does")
		os.Exit(2)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	bin, err := os.MkdirTemp("", "nix")
	if err == nil {
		defer os.RemoveAll(bin)
		err = link(*result, bin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	config := cluster.Config{Name: "nix", BinDir: bin, Nodes: 1, RuntimeOnly: true, Flavour: cluster.Patched}
	return livetest.Main(m, config, func(started *cluster.Cluster) { c, node = started, started.Node("n1") })
}

// link makes bin a folder like _build/bin, with the result's programs.
func link(result, bin string) error {
	for name, target := range map[string]string{
		"patched": filepath.Join(result, "bin"),
		"tools":   filepath.Join("..", "..", "..", "_build", "bin", "tools"),
	} {
		target, err := filepath.Abs(target)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// TestPull pulls an image and checks that CRI-O reports the layers in its manifest.
func TestPull(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	image, err := images.Build(images.Image{Layers: []images.Layer{{Name: "base", Size: 3 << 20}, {Name: "top", Size: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	reference := c.Registry().Address + "/nix/pulled:v1"
	if _, err := images.Push(ctx, reference, image); err != nil {
		t.Fatal(err)
	}
	want, err := livetest.FromRegistry(ctx, reference)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := livetest.Pull(ctx, node, reference); err != nil {
		t.Fatal(err)
	}
	list, err := livetest.ListOne(ctx, node, reference)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 {
		t.Fatalf("%d images are named %s, want 1", len(list), reference)
	}
	got, _, err := livetest.FromCRI(list[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != 3 { // including that of the entrypoint
		t.Fatalf("the manifest names %d layers, want 3", len(want))
	}
	if diff := livetest.Diff(got, want); diff != "" {
		t.Errorf("layers over CRI differ from the manifest: %s", diff)
	}
}

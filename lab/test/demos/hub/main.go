// Command hub pushes the images of the demos to the registry of a local cluster, which
// stands in for Docker Hub there:
//
//	lab/run test/demos/hub 198.51.100.1:5000
//
// They have the names and about the sizes of the images on Docker Hub, and nothing in
// them but a program that sleeps.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

// image is one of Docker Hub's official images, with about its sizes in bytes: what a pull
// transfers, and what CRI-O reports.
type image struct {
	name                     string
	compressed, uncompressed int64
}

var all = []image{
	{"busybox:latest", 2_200_000, 4_400_000},
	{"redis:4", 30_000_000, 90_000_000},
	{"debian:9", 45_000_000, 100_600_000},
	{"redis:5", 39_000_000, 110_000_000},
	{"nginx:latest", 62_000_000, 160_000_000},
	{"nginx:1.10", 71_400_000, 182_000_000},
	{"nginx:1.20", 56_700_000, 141_500_000},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := push(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func push(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the address of one registry, as in 198.51.100.1:5000, not %q", args)
	}
	for _, one := range all {
		built, err := build(one)
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		pushed, err := images.Push(ctx, args[0]+"/library/"+one.name, built)
		if err != nil {
			return err
		}
		fmt.Println(pushed.Reference)
	}
	return nil
}

// build makes an image with one layer. It runs whether its pod names a command or not.
func build(one image) (v1.Image, error) {
	const sleep = "/bin/sleep"
	program, err := images.Pause()
	if err != nil {
		return nil, err
	}
	return images.Build(images.Image{
		Entrypoint: []string{sleep},
		Layers: []images.Layer{{
			Name: one.name,
			// About half of the program is what its compression leaves.
			Size: one.compressed - int64(len(program))/2,
			Files: map[string][]byte{
				sleep: program,
				// Of which hardly anything is transferred.
				"/zeros": make([]byte, one.uncompressed-one.compressed-int64(len(program))/2),
			},
		}},
	})
}

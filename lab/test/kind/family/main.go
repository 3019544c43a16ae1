// Command family pushes two images that share most of their layers to a registry:
// REGISTRY/one:v1 with layers L1 L2 L3, REGISTRY/two:v1 with L1 L2 L4, all of the
// same size.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/layer-locality/layer-locality/lab/cluster/images"
)

const layerBytes = 40e6

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "family:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: family HOST:PORT")
	}
	for name, own := range map[string]string{"one": "L3", "two": "L4"} {
		spec := images.Image{}
		for _, layer := range []string{"L1", "L2", own} {
			spec.Layers = append(spec.Layers, images.Layer{Name: layer, Size: layerBytes})
		}
		image, err := images.Build(spec)
		if err != nil {
			return err
		}
		if _, err := images.Push(ctx, args[0]+"/"+name+":v1", image); err != nil {
			return err
		}
	}
	return nil
}

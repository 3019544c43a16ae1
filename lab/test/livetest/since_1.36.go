//go:build !kubernetes1.35

package livetest

import (
	"context"
	"errors"
	"fmt"
	"io"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Stream calls CRI's StreamImages.
func Stream(ctx context.Context, node *cluster.Node) ([]*runtimeapi.Image, error) {
	cri, err := node.CRI()
	if err != nil {
		return nil, err
	}
	stream, err := cri.Image.StreamImages(ctx, &runtimeapi.StreamImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: StreamImages: %w", node.Name, err)
	}
	var images []*runtimeapi.Image
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return images, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: StreamImages: %w", node.Name, err)
		}
		images = append(images, part.GetImages()...)
	}
}

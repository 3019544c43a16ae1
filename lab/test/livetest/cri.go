package livetest

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Pull lets the node's CRI-O pull the image and returns its ID.
func Pull(ctx context.Context, node *cluster.Node, reference string) (string, error) {
	cri, err := node.CRI()
	if err != nil {
		return "", err
	}
	answer, err := cri.Image.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec(reference)})
	if err != nil {
		return "", fmt.Errorf("%s: pull %s: %w", node.Name, reference, err)
	}
	return answer.GetImageRef(), nil
}

// List calls CRI's ListImages.
func List(ctx context.Context, node *cluster.Node) ([]*runtimeapi.Image, error) {
	return list(ctx, node, nil)
}

// ListOne calls CRI's ListImages, filtered by the name of one image.
func ListOne(ctx context.Context, node *cluster.Node, reference string) ([]*runtimeapi.Image, error) {
	return list(ctx, node, &runtimeapi.ImageFilter{Image: spec(reference)})
}

func list(ctx context.Context, node *cluster.Node, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	cri, err := node.CRI()
	if err != nil {
		return nil, err
	}
	answer, err := cri.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("%s: ListImages: %w", node.Name, err)
	}
	return answer.GetImages(), nil
}

// Status calls CRI's ImageStatus. The result is nil if there is no such image.
func Status(ctx context.Context, node *cluster.Node, reference string) (*runtimeapi.Image, error) {
	cri, err := node.CRI()
	if err != nil {
		return nil, err
	}
	answer, err := cri.Image.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec(reference)})
	if err != nil {
		return nil, fmt.Errorf("%s: ImageStatus of %s: %w", node.Name, reference, err)
	}
	return answer.GetImage(), nil
}

// Crictl returns what users see: the output of "crictl images -o json" on the
// node.
func Crictl(ctx context.Context, node *cluster.Node) ([]*runtimeapi.Image, error) {
	out, err := node.Exec(ctx, "crictl", "images", "-o", "json")
	if err != nil {
		return nil, err
	}
	return FromCrictl(node.Name, out)
}

// FromCrictl reads what "crictl images -o json" printed on the node.
func FromCrictl(node string, out []byte) ([]*runtimeapi.Image, error) {
	var answer runtimeapi.ListImagesResponse
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("%s: crictl images -o json: %w", node, err)
	}
	return answer.GetImages(), nil
}

func spec(reference string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: reference} }

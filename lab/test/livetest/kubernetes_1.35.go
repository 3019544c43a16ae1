//go:build kubernetes1.35

package livetest

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/layer-locality/layer-locality/lab/cluster"
)

// Stream calls CRI's ListImages: this CRI has no StreamImages.
func Stream(ctx context.Context, node *cluster.Node) ([]*runtimeapi.Image, error) {
	return List(ctx, node)
}

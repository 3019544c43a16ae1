//go:build !kubernetes1.35 && !kubernetes1.37

package plan

import (
	"context"

	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

// newCache returns kube-scheduler's own.
func newCache(ctx context.Context) cache.Cache { return cache.New(ctx, nil, false) }

// countsVolumes: ImageLocality counts the images of volumes.
const countsVolumes = true

//go:build kubernetes1.37

package cluster

import (
	"context"

	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

// newCache returns kube-scheduler's own.
func newCache(ctx context.Context) schedulercache.Cache {
	return schedulercache.New(ctx, nil, false, false)
}

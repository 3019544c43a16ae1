//go:build kubernetes1.37

package plan

import (
	"context"

	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

// newCache returns kube-scheduler's own.
func newCache(ctx context.Context) cache.Cache { return cache.New(ctx, nil, false, false) }

// volumesExplained: kubectl layers explains image volumes by the formula of 1.36, which others do not have.
const volumesExplained = false

package registry

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/lru"
)

const (
	// smallBody is how many bytes of an answer are read without a reservation: more than
	// almost all manifests have, so that nobody's large ones delay them.
	smallBody = 128 << 10
	// maxLarge and maxLargeEach are how many larger answers are read at a time: in all,
	// and of one registry. With at most maxBody bytes each, this bounds the memory that
	// hostile answers of many registries take together.
	maxLarge     = 8
	maxLargeEach = 2
)

// large admits answers that are larger than smallBody.
type large struct {
	all *semaphore.Weighted

	mu   sync.Mutex
	each *lru.Cache // registry: *semaphore.Weighted
}

func newLarge() *large {
	return &large{all: semaphore.NewWeighted(maxLarge), each: lru.New(maxHosts)}
}

// reserve waits until a large answer of a registry may be read, at most as long as the
// context lasts. The caller has to call release.
func (l *large) reserve(ctx context.Context, registry string) (release func(), err error) {
	l.mu.Lock()
	each, ok := l.each.Get(registry)
	if !ok {
		each = semaphore.NewWeighted(maxLargeEach)
		l.each.Add(registry, each)
	}
	l.mu.Unlock()
	own := each.(*semaphore.Weighted)
	if err := own.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := l.all.Acquire(ctx, 1); err != nil {
		own.Release(1)
		return nil, err
	}
	return func() {
		l.all.Release(1)
		own.Release(1)
	}, nil
}

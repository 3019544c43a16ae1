package controller

import (
	"sync"
	"time"

	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// quotaUnits is how many units of a quota an answer takes.
func quotaUnits(answer *lookup.Answer) int {
	layers := 0
	for i := range answer.Found.Manifests {
		layers += len(answer.Found.Manifests[i].Layers)
	}
	return usage.Units(layers)
}

// maxLearned bounds the answers in the backlog; for more, registries are asked
// again.
const maxLearned = 1000

// toleratedImages is for how many images writes fail before that counts as the API server's.
const toleratedImages = 3

// maxOutage is how long an API server that fails is not asked. It is short, as only some writes may fail.
const maxOutage = 10 * time.Second

// backlog has the answers that could not be written to the API server. So a
// registry that has answered is not asked again.
type backlog struct {
	mu sync.Mutex
	// failures of the API server in a row, and of which images; at most toleratedImages.
	failures int
	failing  map[string]bool
	// answers by key of the image.
	answers map[string]*lookup.Answer
}

func newBacklog() *backlog {
	return &backlog{failing: map[string]bool{}, answers: map[string]*lookup.Answer{}}
}

// of returns the answer for an image, or nil if there is none.
func (b *backlog) of(image usage.Image) *lookup.Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answers[image.Key]
}

// keep keeps an answer, if there is room.
func (b *backlog) keep(image usage.Image, answer *lookup.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.answers) < maxLearned {
		b.answers[image.Key] = answer
	}
}

// forget drops the answers for images.
func (b *backlog) forget(keys ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		delete(b.answers, key)
	}
}

// failed notes that the API server did not accept a write about an image, and returns how long
// to wait, and whether it fails for several images: then it is the server.
func (b *backlog) failed(image usage.Image) (wait time.Duration, outage bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	if len(b.failing) < toleratedImages {
		b.failing[image.Key] = true
	}
	return queue.Backoff(b.failures, time.Second, maxOutage), len(b.failing) >= toleratedImages
}

// succeeded notes that the API server accepts writes.
func (b *backlog) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	clear(b.failing)
}

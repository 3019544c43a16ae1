// Package read follows what a container runtime holds and hands it over.
package read

import (
	"context"
	"errors"

	"github.com/layer-locality/layer-locality/agent/contents"
)

// Runtime is a container runtime.
type Runtime interface {
	// Name of the runtime.
	Name() string
	// Read returns what the node holds. It reads again only what has changed.
	Read(ctx context.Context) (*Result, error)
	// Watch calls changed whenever the images may have changed, also when it begins to see
	// that. It ends with the context, or with an error.
	Watch(ctx context.Context, changed func()) error
}

// Result is what one reading found.
type Result struct {
	Contents contents.Contents
	// Pulls are how many downloads of layers are going on.
	Pulls int
	// Incomplete means that an image was just being added or removed: it is read again soon.
	Incomplete bool
	// Skipped counts what could not be used, by reason.
	Skipped map[string]int
}

// Skip counts what could not be used.
func (r *Result) Skip(reason string, n int) {
	if r.Skipped == nil {
		r.Skipped = map[string]int{}
	}
	r.Skipped[reason] += n
}

// ErrGone means that what was to be read has been replaced in a way that this process cannot
// follow: it has to be started again.
var ErrGone = errors.New("the folder was removed: start again to see the one in its place")

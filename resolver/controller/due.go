package controller

import (
	"time"

	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

// snapshot is what is known about an image at one moment.
type snapshot struct {
	image usage.Image
	now   time.Time
	// last is how the last attempt ended.
	last attempt
	// reference is the first one of the image that is known, and known what is known about it; empty
	// and nil if nothing is.
	reference string
	known     *store.Answer
	// adopted is set if the reference is a digest and all objects of its content have it.
	adopted bool
	// platforms of the nodes.
	platforms []string
	// room is set if there is room for what is not known yet.
	room bool
	// tagTTL is how long an answer for a tag counts.
	tagTTL time.Duration
}

func (r *Resolver) snapshot(image usage.Image) snapshot {
	s := snapshot{
		image: image, now: r.clock.Now(), last: r.attempts.of(image), platforms: r.nodes.clusterPlatforms(), tagTTL: r.options.TagTTL,
	}
	// One that only nodes hold displaces no other.
	s.room = r.quotas.resolved.HasRoom(r.usage.Namespaces(image.Key), r.usage.OnlyOnNodes(image.Key))
	s.reference, s.known = r.known(image)
	s.adopted = s.known != nil && r.store.Adopted(s.reference)
	return s
}

// known returns what is known about an image, and about which of its references; nil if nothing
// is.
func (r *Resolver) known(image usage.Image) (reference string, known *store.Answer) {
	for _, reference := range image.References {
		if known := r.store.Lookup(reference); known != nil {
			return reference, known
		}
	}
	return "", nil
}

// task is what has to be done about an image.
type task int

const (
	nothing task = iota
	// refuse says that there is no room for the image.
	refuse
	// adopt adds a digest to the objects that have its content already.
	adopt
	// confirm asks whether a tag still points to the same digest.
	confirm
	// resolve asks for the layers of an image.
	resolve
)

// todo is what has to be done about an image, and when.
type todo struct {
	snapshot
	task task
	// after is how long there is nothing to do; negative means for ever. It is 0
	// for any other task.
	after time.Duration
}

// due returns what has to be done about an image now, or how long there is nothing
// to do.
func due(s snapshot) todo {
	t := todo{snapshot: s, task: resolve}
	wait := s.last.Retry.Sub(s.now)
	switch {
	case s.known == nil || !s.known.Covers(s.platforms):
	case store.DigestOf(s.reference) == "":
		t.task = confirm
		// At most the TTL, in case the clock of the process that confirmed it was
		// ahead.
		wait = max(wait, min(s.known.Confirmed.Add(s.tagTTL).Sub(s.now), s.tagTTL))
	case !s.adopted:
		t.task = adopt
	default: // a digest means the same for ever
		t.task, t.after, wait = nothing, -1, 0
	}
	switch {
	case wait > 0:
		t.task, t.after = nothing, wait
	case !s.room && (t.task == adopt || s.known == nil):
		t.task = refuse // no registry has to be asked for that
	}
	return t
}

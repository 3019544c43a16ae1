package layerlocality

import (
	"time"

	"k8s.io/utils/clock"
)

// waitBudget decides how long pods wait for the answer of a source about their images. It
// waits once for an image, and less and less for a source that does not answer: a resolver
// that is gone, or behind, must not delay the pods of a cluster.
//
// It is not safe for concurrent use.
type waitBudget struct {
	// wait is how long a pod is gated for an image at most.
	wait  time.Duration
	clock clock.PassiveClock
	// images has those that are waited for, and those that were in vain a while ago.
	images map[string]*awaited
	// waiting is how many of them pods are gated for now.
	waiting int
	// forgotten is when those of long ago were last dropped.
	forgotten time.Time
	// groups has the deadlines of pod groups: all pods of a gang are needed, and must not
	// wait one after another.
	groups map[string]time.Time

	// atOnce is how many images are waited for at once, less those that are late. It grows
	// with each answer in time, and falls back with each that does not come.
	atOnce int
	// late counts images in a row for which no answer came in time.
	late int
	// Nothing is waited for until paused; pause is how long the next pause takes.
	paused time.Time
	pause  time.Duration
}

// awaited is an image that pods wait or waited for.
type awaited struct {
	deadline time.Time
	// gated means that a pod waits for it; otherwise an answer in time only shows that the
	// source is well again.
	gated bool
	// open until an answer came or the deadline has passed.
	open bool
}

const (
	// An image is waited for once in this time.
	rememberAwaited = 10 * time.Minute
	maxAwaited      = 4096

	leastAtOnce, mostAtOnce = 3, 10

	// After so many images in a row without an answer, nothing is waited for.
	tooLate              = 3
	leastPause, maxPause = 30 * time.Second, 16 * time.Minute
)

func newWaitBudget(wait time.Duration, c clock.PassiveClock) *waitBudget {
	return &waitBudget{wait: wait, clock: c, images: map[string]*awaited{}, groups: map[string]time.Time{}, atOnce: leastAtOnce, pause: leastPause}
}

// until returns until when a pod of a group ("" for none) is gated for images of which
// nothing is known; a time that has passed means that it is not gated.
func (b *waitBudget) until(images []string, group string) (deadline time.Time) {
	now := b.clock.Now()
	b.forget(now)
	first, member := b.groups[group]
	if member && !now.Before(first) {
		return first
	}
	for _, image := range images[:min(len(images), mostAtOnce)] {
		a := b.images[image]
		if a == nil {
			a = b.await(image, now)
		}
		if a != nil && a.gated && a.deadline.After(deadline) {
			deadline = a.deadline
		}
	}
	switch {
	case member && first.Before(deadline):
		return first
	case !member && group != "" && deadline.After(now) && len(b.groups) < maxAwaited:
		b.groups[group] = deadline
	}
	return deadline
}

// await begins to wait for an image; nil if that is one too many.
func (b *waitBudget) await(image string, now time.Time) *awaited {
	if len(b.images) >= maxAwaited {
		return nil
	}
	a := &awaited{deadline: now.Add(b.wait), gated: b.waiting < max(1, b.atOnce-b.late) && !now.Before(b.paused), open: true}
	if a.gated {
		b.waiting++
	}
	b.images[image] = a
	return a
}

// close ends the waiting for an image.
func (b *waitBudget) close(a *awaited) {
	a.open = false
	if a.gated {
		b.waiting--
	}
}

// forget drops what does not matter any more, at most once a second.
func (b *waitBudget) forget(now time.Time) {
	if now.Sub(b.forgotten) < time.Second {
		return
	}
	b.forgotten = now
	for image, a := range b.images {
		if now.Sub(a.deadline) > rememberAwaited {
			delete(b.images, image)
		}
	}
	for group, deadline := range b.groups {
		if now.Sub(deadline) > rememberAwaited {
			delete(b.groups, group)
		}
	}
}

// look draws conclusions from the answers that came, and from those that did not. It
// reports whether some are still awaited. unknown reports whether nothing is known about an
// image yet, answered whether the source had an answer: a node may have been faster.
func (b *waitBudget) look(unknown, answered func(image string) bool) (more bool) {
	now := b.clock.Now()
	for image, a := range b.images {
		switch {
		case !a.open:
		case !unknown(image):
			b.close(a)
			delete(b.images, image)
			if answered(image) {
				b.late, b.paused, b.pause = 0, time.Time{}, leastPause
				b.atOnce = min(b.atOnce+1, mostAtOnce)
			}
		case now.Before(a.deadline):
			more = true
		default:
			b.close(a)
			if a.gated && !now.Before(b.paused) {
				b.missed(now)
			}
		}
	}
	return more
}

// missed notes that no answer came in time.
func (b *waitBudget) missed(now time.Time) {
	b.atOnce = leastAtOnce
	if b.late++; b.late >= tooLate {
		b.paused = now.Add(b.pause)
		b.pause = min(2*b.pause, maxPause)
	}
}

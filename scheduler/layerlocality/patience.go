package layerlocality

import (
	"time"

	"k8s.io/utils/clock"
)

// patience decides how long pods wait for what a source may still learn about their
// images. It waits once for an image, and less and less for a source that does not answer:
// a resolver that is gone, or behind, must not delay the pods of a cluster.
//
// It is not safe for concurrent use.
type patience struct {
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

func newPatience(wait time.Duration, c clock.PassiveClock) *patience {
	return &patience{wait: wait, clock: c, images: map[string]*awaited{}, groups: map[string]time.Time{}, atOnce: leastAtOnce, pause: leastPause}
}

// until returns until when a pod of a group ("" for none) is gated for images of which
// nothing is known; a time that has passed means that it is not gated.
func (p *patience) until(images []string, group string) (deadline time.Time) {
	now := p.clock.Now()
	p.forget(now)
	first, member := p.groups[group]
	if member && !now.Before(first) {
		return first
	}
	for _, image := range images[:min(len(images), mostAtOnce)] {
		a := p.images[image]
		if a == nil {
			a = p.await(image, now)
		}
		if a != nil && a.gated && a.deadline.After(deadline) {
			deadline = a.deadline
		}
	}
	switch {
	case member && first.Before(deadline):
		return first
	case !member && group != "" && deadline.After(now) && len(p.groups) < maxAwaited:
		p.groups[group] = deadline
	}
	return deadline
}

// await begins to wait for an image; nil if that is one too many.
func (p *patience) await(image string, now time.Time) *awaited {
	if len(p.images) >= maxAwaited {
		return nil
	}
	a := &awaited{deadline: now.Add(p.wait), gated: p.waiting < max(1, p.atOnce-p.late) && !now.Before(p.paused), open: true}
	if a.gated {
		p.waiting++
	}
	p.images[image] = a
	return a
}

// close ends the waiting for an image.
func (p *patience) close(a *awaited) {
	a.open = false
	if a.gated {
		p.waiting--
	}
}

// forget drops what does not matter any more, at most once a second.
func (p *patience) forget(now time.Time) {
	if now.Sub(p.forgotten) < time.Second {
		return
	}
	p.forgotten = now
	for image, a := range p.images {
		if now.Sub(a.deadline) > rememberAwaited {
			delete(p.images, image)
		}
	}
	for group, deadline := range p.groups {
		if now.Sub(deadline) > rememberAwaited {
			delete(p.groups, group)
		}
	}
}

// look draws conclusions from the answers that came, and from those that did not. It
// reports whether some are still awaited. unknown reports whether nothing is known about an
// image yet, answered whether the source had an answer: a node may have been faster.
func (p *patience) look(unknown, answered func(image string) bool) (more bool) {
	now := p.clock.Now()
	for image, a := range p.images {
		switch {
		case !a.open:
		case !unknown(image):
			p.close(a)
			delete(p.images, image)
			if answered(image) {
				p.late, p.paused, p.pause = 0, time.Time{}, leastPause
				p.atOnce = min(p.atOnce+1, mostAtOnce)
			}
		case now.Before(a.deadline):
			more = true
		default:
			p.close(a)
			if a.gated && !now.Before(p.paused) {
				p.missed(now)
			}
		}
	}
	return more
}

// missed notes that no answer came in time.
func (p *patience) missed(now time.Time) {
	p.atOnce = leastAtOnce
	if p.late++; p.late >= tooLate {
		p.paused = now.Add(p.pause)
		p.pause = min(2*p.pause, maxPause)
	}
}

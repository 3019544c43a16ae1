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
	// wait is how long a pod is held for an image at most.
	wait   time.Duration
	clock  clock.PassiveClock
	images map[string]*awaited
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
	// held means that a pod waits for it; otherwise an answer in time only shows that the
	// source is well again.
	held bool
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

// until returns until when a pod of a group ("" for none) is held for images of which
// nothing is known; a time that has passed means that it is not held.
func (p *patience) until(images []string, group string) (deadline time.Time) {
	now := p.clock.Now()
	for _, image := range images {
		a := p.images[image]
		if a == nil || now.Sub(a.deadline) > rememberAwaited {
			a = p.await(image, now)
		}
		if a != nil && a.held && a.deadline.After(deadline) {
			deadline = a.deadline
		}
	}
	if group == "" || !deadline.After(now) {
		return deadline
	}
	if first, ok := p.groups[group]; ok {
		if first.Before(deadline) {
			return first
		}
	} else if len(p.groups) < maxAwaited {
		p.groups[group] = deadline
	}
	return deadline
}

// await begins to wait for an image; nil if that is one too many.
func (p *patience) await(image string, now time.Time) *awaited {
	p.forget(now)
	if len(p.images) >= maxAwaited {
		return nil
	}
	waiting := 0
	for _, a := range p.images {
		if a.open && a.held {
			waiting++
		}
	}
	a := &awaited{deadline: now.Add(p.wait), held: waiting < max(1, p.atOnce-p.late) && !now.Before(p.paused), open: true}
	p.images[image] = a
	return a
}

// forget drops what does not matter any more.
func (p *patience) forget(now time.Time) {
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

// look draws conclusions from what has become known, and from what has not. It reports
// whether answers are still awaited. unknown tells whether an image still is.
func (p *patience) look(unknown func(image string) bool) (more bool) {
	now := p.clock.Now()
	for image, a := range p.images {
		switch {
		case !a.open:
		case !unknown(image):
			a.open = false
			p.late, p.paused, p.pause = 0, time.Time{}, leastPause
			p.atOnce = min(p.atOnce+1, mostAtOnce)
		case now.Before(a.deadline):
			more = true
		default:
			a.open = false
			if a.held && !now.Before(p.paused) {
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

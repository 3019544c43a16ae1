package account

import (
	"slices"
	"time"
)

// Interval is a time in which a pod ran.
type Interval struct{ From, To time.Time }

func (i Interval) weigh(w Window, now time.Time) float64 { return w.Weigh(i.From, i.To, now) }

// Together divides the running time of pods between two times into the seconds in which enough
// of them ran, and the others. Enough is the given number; if that is 0, all that there were:
// lives has since and until when. They are weighed as of now.
func Together(runs, lives []Interval, replicas int, from, to time.Time, w Window, now time.Time) (together, alone float64) {
	type step struct {
		at         time.Time
		up, enough int
	}
	steps := make([]step, 0, 2*(len(runs)+len(lives)))
	add := func(intervals []Interval, up, enough int) {
		for _, i := range intervals {
			i.From, i.To = later(i.From, from), Earlier(i.To, to)
			if i.From.Before(i.To) {
				steps = append(steps, step{i.From, up, enough}, step{i.To, -up, -enough})
			}
		}
	}
	add(runs, 1, 0)
	if replicas == 0 {
		add(lives, 0, 1)
	}
	slices.SortFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	up, enough := 0, replicas
	for i, s := range steps {
		if i > 0 && up > 0 {
			seconds := float64(up) * w.Weigh(steps[i-1].at, s.at, now)
			if up >= enough {
				together += seconds
			} else {
				alone += seconds
			}
		}
		up, enough = up+s.up, enough+s.enough
	}
	return together, alone
}

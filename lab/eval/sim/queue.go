package sim

import (
	"container/heap"
	"time"
)

// queue holds future events, in virtual time.
type queue struct {
	now     time.Duration
	pending agenda
	last    uint64
}

type event struct {
	at time.Duration
	// seq orders events of the same time.
	seq uint64
	do  func()
}

// at schedules do for a time, which is not before now.
func (q *queue) at(t time.Duration, do func()) {
	q.last++
	heap.Push(&q.pending, event{max(t, q.now), q.last, do})
}

// next runs the next event; false if there is none.
func (q *queue) next() bool {
	if len(q.pending) == 0 {
		return false
	}
	e := heap.Pop(&q.pending).(event)
	q.now = e.at
	e.do()
	return true
}

type agenda []event

func (e agenda) Len() int { return len(e) }
func (e agenda) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e agenda) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *agenda) Push(x any)   { *e = append(*e, x.(event)) }
func (e *agenda) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// epoch is the date at which virtual time begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Now and Since make a queue a clock.PassiveClock.
func (q *queue) Now() time.Time                  { return epoch.Add(q.now) }
func (q *queue) Since(t time.Time) time.Duration { return q.Now().Sub(t) }

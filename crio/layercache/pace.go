package layercache

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mostSeen is how many downloads from registries are remembered.
	mostSeen = 16

	// leastRate is how many bytes a second neighbours have to send in any case: agent/peers has the
	// same number.
	leastRate = 2 << 20

	// patience is for how long neighbours may be behind the registry.
	patience = 2 * time.Second
)

var errBehind = errors.New("neighbours are slower than the registry was")

// rates remember how fast registries were.
type rates struct {
	lock sync.Mutex
	last []download
}

type download struct {
	from, to time.Time
	bytes    int64
}

// see remembers what was downloaded into a file since that was made.
func (r *rates) see(file *os.File) {
	const want = unix.STATX_BTIME | unix.STATX_MTIME | unix.STATX_SIZE

	var info unix.Statx_t
	if err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, want, &info); err == nil && info.Mask&want == want { //nolint:gosec // a descriptor
		r.add(download{
			time.Unix(info.Btime.Sec, int64(info.Btime.Nsec)), time.Unix(info.Mtime.Sec, int64(info.Mtime.Nsec)),
			int64(info.Size), //nolint:gosec // no file is that large
		})
	}
}

func (r *rates) add(d download) {
	if d.bytes <= smallBytes || !d.from.Before(d.to) { // a small one measures the distance
		return
	}

	r.lock.Lock()
	defer r.lock.Unlock()

	r.last = append(r.last, d)
	r.last = r.last[max(0, len(r.last)-mostSeen):]
}

// rate returns how many bytes a second came while anything did, at least leastRate; 0 if nothing came yet.
func (r *rates) rate() int64 {
	r.lock.Lock()
	defer r.lock.Unlock()

	var (
		bytes int64
		busy  time.Duration
		until time.Time
	)

	for _, d := range slices.SortedFunc(slices.Values(r.last), func(a, b download) int { return a.from.Compare(b.from) }) {
		bytes += d.bytes

		if d.from.After(until) {
			until = d.from
		}

		if d.to.After(until) {
			busy, until = busy+d.to.Sub(until), d.to
		}
	}

	if busy == 0 {
		return 0
	}

	return max(leastRate, int64(float64(bytes)/busy.Seconds()))
}

// pace is how fast neighbours are for all pulls together, as they share a link. It is a Writer of what
// neighbours send.
type pace struct {
	patience time.Duration
	coming   atomic.Int32 // layers
	came     atomic.Int64 // bytes that are not counted yet

	lock   sync.Mutex
	pulls  int
	rate   int64 // about that of the registry
	behind time.Duration
	seen   time.Time // until when that is counted
}

func (p *pace) Write(b []byte) (int, error) {
	p.came.Add(int64(len(b)))

	return len(b), nil
}

// begin begins a pull, for which neighbours have to be as fast as rate.
func (p *pace) begin(rate int64, now time.Time) {
	p.lock.Lock()
	defer p.lock.Unlock()

	if p.pulls++; p.pulls == 1 {
		p.behind, p.seen = 0, now
		p.came.Store(0)
	}

	p.rate = rate
}

func (p *pace) end() {
	p.lock.Lock()
	defer p.lock.Unlock()

	p.pulls--
}

// watch calls end once neighbours are too far behind.
func (p *pace) watch(ctx context.Context, end func(error)) {
	ticker := time.NewTicker(p.patience / 20)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}

		if p.late(time.Now()) {
			end(errBehind)

			return
		}
	}
}

// late reports whether neighbours are too far behind by now. What they were ahead does not count.
func (p *pace) late(now time.Time) bool {
	p.lock.Lock()
	defer p.lock.Unlock()

	if p.coming.Load() > 0 {
		p.behind += now.Sub(p.seen)
	}

	p.seen = now
	p.behind -= time.Duration(float64(p.came.Swap(0)) / float64(p.rate) * float64(time.Second))
	p.behind = max(0, p.behind)

	return p.behind > p.patience
}

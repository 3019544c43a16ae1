package layershare

import (
	"context"
	"slices"
	"time"

	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/types"
)

// A pull that waits ends at most half as long again and slack later than it would by itself. It
// compares the rate of what it waits for with that of its own connection. That is measured only
// if it may matter, by reading the beginning of a layer: on a full link it is no faster, and
// another download would slow down the one that goes on.
const (
	slack = 4 * time.Second

	// rateWindow is the time in which rates are seen, and how long a pull has to show its own.
	// Between two arrivals there may be a pause, after which the rate is seen anew, but for
	// silence nothing is a pause.
	rateWindow = 3 * time.Second
	pause      = time.Second
	silence    = 4 * time.Second

	// longWindow has pauses in it: over it, the mean rate is not less than this part of the
	// other one, or that is of bursts.
	longWindow = 10 * time.Second
	burstPart  = 0.4

	// secondTry is how long the last pull that waited in vain has to get ahead of the others
	// before the next one tries, too.
	secondTry = 30 * time.Second

	// measureBytes and measureTime bound what a measurement reads. Between two of a pull there is
	// measurePause, twice as long each time, up to maxPause.
	measureBytes = 2 << 20
	measureTime  = 2 * time.Second
	measurePause = 5 * time.Second
	maxPause     = 30 * time.Second
	speedUp      = 4

	// copyRate is what a pull downloads at the most, in bytes a second: it hashes, unpacks and stores
	// that, too. Nodes with fast disks do more.
	copyRate = 50 << 20
)

// ownRate is that of a pull's own connection.
type ownRate struct {
	// bytes a second of compressed layers; 0 if it is not known.
	bytes    int64
	at       time.Time  // when it was measured
	measured chan int64 // nil while nobody measures
	pause    time.Duration
}

// recent reports whether the last measurement still holds.
func (r *ownRate) recent(now time.Time) bool { return r.bytes > 0 && now.Sub(r.at) < measurePause }

// measure begins to measure with that layer, unless it does so already or has lately.
func (r *ownRate) measure(ctx context.Context, now time.Time, opened types.ImageSource, layer types.BlobInfo) {
	if r.measured != nil || now.Sub(r.at) < r.pause {
		return
	}

	measured := make(chan int64, 1)
	r.measured = measured

	go func() { measured <- rateOf(ctx, opened, layer) }()
}

func (r *ownRate) note(now time.Time, bytes int64) {
	r.bytes, r.at, r.measured, r.pause = bytes, now, nil, min(max(2*r.pause, measurePause), maxPause)
}

// rateOf returns how many bytes of a layer come in a second, in the second half of what is read: in
// the first a connection gets faster, but no more than speedUp times. Beyond that, the second half
// had come before it was read. 0 if nothing comes.
func rateOf(ctx context.Context, source types.ImageSource, layer types.BlobInfo) int64 {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	asked := time.Now()

	stream, _, err := source.GetBlob(ctx, layer, none.NoCache)
	if err != nil {
		return 0
	}

	defer stream.Close()
	// With the context ends a read that waits. Closing the stream meanwhile would not be safe.
	defer time.AfterFunc(measureTime, cancel).Stop()

	total := []arrival{{time.Now(), 0}}
	buffer := make([]byte, 32<<10)

	for sum := int64(0); sum < measureBytes; {
		n, err := stream.Read(buffer)
		if n > 0 {
			sum += int64(n)
			total = append(total, arrival{time.Now(), sum})
		}

		if err != nil {
			break
		}
	}

	last := total[len(total)-1]
	half := total[slices.IndexFunc(total, func(a arrival) bool { return a.bytes >= last.bytes/2 })]

	end := last.at
	if ctx.Err() != nil {
		end = time.Now()
	}

	took := max(end.Sub(half.at), half.at.Sub(asked)/speedUp, time.Millisecond)

	return int64(float64(last.bytes-half.bytes) / took.Seconds())
}

// myTurn reports whether the pull is behind, and those that wait before it have had time to try.
func (w *waiter) myTurn(now time.Time, missing []int) bool {
	if !w.behind(now, missing) {
		w.trouble = time.Time{}

		return false
	}

	if w.trouble.IsZero() {
		w.trouble = now
	}

	from := w.trouble

	for _, other := range w.older {
		if state := other.pull.now(); state.phase == waits && !state.unknown && missing[0] < other.layers {
			from = from.Add(patience)
		}
	}

	return !now.Before(from)
}

// behind reports whether the pull waits longer than it should, at the own rate that it measured last,
// for each of the pulls that download the lowest missing layer.
func (w *waiter) behind(now time.Time, missing []int) (behind bool) {
	waited := now.Sub(w.began)
	if waited < rateWindow {
		return false
	}

	for _, other := range w.older {
		state := other.pull.now()
		if missing[0] >= other.layers || state.phase == waits {
			continue
		}

		shown := now.Sub(state.since)
		if shown < rateWindow || state.phase == resigned && shown < secondTry || waited <= w.limit(other, state, missing, now) {
			return false
		}

		behind = true
	}

	return behind
}

// limit returns how long the pull may have waited, if it goes on to wait for what the other one
// downloads.
func (w *waiter) limit(other sharing, state state, missing []int, now time.Time) time.Duration {
	above, _ := slices.BinarySearch(missing, other.layers)
	missing = missing[:above]

	if slices.ContainsFunc(missing, func(i int) bool { return w.silent(other, i) && !other.began(w.layers, i) }) {
		return maxWait // its time cannot be estimated
	}

	d := other.download(w.layers, missing, state.since, now)
	if d.rest == 0 || !d.known {
		return forEver // all has arrived, and patience is for what is unpacked, or it is too early
	}

	limit, rest := slack, seconds(float64(d.rest)/d.rate)

	if w.own.bytes > 0 {
		// A copy has several connections as well.
		rate := min(float64(w.own.bytes)*float64(d.connections), copyRate)
		if rest <= seconds(float64(w.bytes(missing))/rate) {
			return forEver // its own download would not end earlier
		}

		above, _ = slices.BinarySearch(w.lacked, other.layers)
		limit += seconds(float64(w.bytes(w.lacked[:above])) / rate * 3 / 2)
	}

	return limit - rest
}

// download is what a pull still has to download, and how fast it does.
type download struct {
	rest        int64   // bytes
	rate        float64 // bytes a second
	connections int     // over which something comes
	known       bool    // the rate is
}

// download returns how far the other pull is with the missing layers, and how fast layers that both
// have arrive. It copies since then.
func (s sharing) download(layers []types.BlobInfo, missing []int, since, now time.Time) (d download) {
	s.pull.lock.Lock()
	defer s.pull.lock.Unlock()

	for _, i := range missing {
		d.rest += s.pull.reports[layers[i].Digest].rest(size(layers[i]))
	}

	var all []arrival

	for _, layer := range layers[:s.layers] {
		report := s.pull.reports[layer.Digest]
		all = append(all, report.arrivals...)

		if report.begun && !report.done && now.Sub(report.moved) < rateWindow {
			d.connections++
		}
	}

	d.connections = max(d.connections, 1)
	d.rate, d.known = rateOfArrivals(all, since, now)

	return d
}

// rateOfArrivals returns the rate since the last pause; none if it is too early for one.
func rateOfArrivals(all []arrival, since, now time.Time) (rate float64, known bool) {
	all = slices.DeleteFunc(all, func(a arrival) bool { return now.Sub(a.at) >= longWindow })
	slices.SortFunc(all, func(a, b arrival) int { return a.at.Compare(b.at) })

	if len(all) > 0 {
		since = all[len(all)-1].at
	}

	switch {
	case now.Sub(since) >= silence:
		return 0, true
	case len(all) == 0:
		return 0, false
	}

	var bytes, total int64

	begin := since

	for _, a := range slices.Backward(all) {
		if begin.Sub(a.at) > pause || since.Sub(a.at) > rateWindow {
			break
		}

		bytes, begin = bytes+a.bytes, a.at
	}

	for _, a := range all {
		total += a.bytes
	}

	if now.Sub(begin) < rateWindow/6 {
		return 0, false // it has just begun, or gone on after a pause
	}

	rate = float64(bytes) / (since.Sub(begin) + ReportInterval).Seconds()
	if long := now.Sub(all[0].at); long >= rateWindow {
		rate = min(rate, float64(total)/long.Seconds()/burstPart)
	}

	return rate, true
}

// rest returns how much of a blob of that size has not arrived. The copy does not report what
// arrives in less than ReportInterval after its last report.
func (r report) rest(size int64) int64 {
	last := len(r.arrivals) - 1

	switch {
	case r.done || r.reused:
		return 0
	case r.bytes > size: // it is something else
		return size
	case last < 0:
		return size - r.bytes
	}

	return max(size-r.bytes-r.arrivals[last].bytes*3/2, 0)
}

// arrive notes that so many bytes of the blob have arrived now.
func (r *report) arrive(now time.Time, bytes int64) {
	old := 0
	for old < len(r.arrivals) && now.Sub(r.arrivals[old].at) >= longWindow {
		old++
	}

	r.arrivals = append(slices.Clone(r.arrivals[old:]), arrival{now, max(bytes-r.bytes, 0)})
	r.bytes, r.moved = bytes, now
}

// largest returns the largest of the missing layers.
func (w *waiter) largest(missing []int) types.BlobInfo {
	largest := missing[0]
	for _, i := range missing {
		if size(w.layers[i]) > size(w.layers[largest]) {
			largest = i
		}
	}

	return w.layers[largest]
}

// forEver is longer than any pull lasts.
const forEver = 365 * 24 * time.Hour

func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), float64(forEver)))
}

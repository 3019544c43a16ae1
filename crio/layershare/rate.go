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
	rateWindow = 3 * time.Second

	// secondTry is how long the last pull that waited in vain has to get ahead of the others
	// before the next one tries, too.
	secondTry = 30 * time.Second

	// measureBytes and measureTime bound what a measurement reads. Between two of a pull there is
	// measurePause, twice as long each time.
	measureBytes = 2 << 20
	measureTime  = 2 * time.Second
	measurePause = 5 * time.Second

	// copyRate is more than many nodes copy: a pull hashes, unpacks and stores what it downloads.
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

// recent tells whether the last measurement still holds.
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
	r.bytes, r.at, r.measured, r.pause = bytes, now, nil, max(2*r.pause, measurePause)
}

// rateOf returns how many bytes of a layer come in a second, after the beginning, in which a
// connection gets faster; 0 if nothing comes.
func rateOf(ctx context.Context, source types.ImageSource, layer types.BlobInfo) int64 {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	stream, _, err := source.GetBlob(ctx, layer, none.NoCache)
	if err != nil {
		return 0
	}

	defer stream.Close()

	// A read does not end with measureTime by itself.
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	defer time.AfterFunc(measureTime, cancel).Stop()

	arrived := []arrival{{time.Now(), 0}}
	buffer := make([]byte, 32<<10)

	for sum := int64(0); sum < measureBytes; {
		n, err := stream.Read(buffer)
		if n > 0 {
			sum += int64(n)
			arrived = append(arrived, arrival{time.Now(), sum})
		}

		if err != nil {
			break
		}
	}

	last := arrived[len(arrived)-1]
	half := arrived[slices.IndexFunc(arrived, func(a arrival) bool { return a.bytes >= last.bytes/2 })]

	end := last.at
	if ctx.Err() != nil {
		end = time.Now()
	}

	return int64(float64(last.bytes-half.bytes) / max(end.Sub(half.at), time.Millisecond).Seconds())
}

// behind tells whether the pull waits longer than it should, with what it knows of its own rate,
// for each of the pulls that download the lowest missing layer.
func (w *waiter) behind(now time.Time, missing []int) (behind bool) {
	waited := now.Sub(w.began)
	from := rateWindow

	for _, other := range w.older {
		// Those who wait before this pull try before it.
		if copying, _, _ := other.pull.copying(); !copying && missing[0] < other.layers {
			from += patience
		}
	}

	if waited < from {
		return false
	}

	for _, other := range w.older {
		copying, inVain, since := other.pull.copying()
		if missing[0] >= other.layers || !copying {
			continue
		}

		shown := now.Sub(since)
		if shown < rateWindow || inVain && shown < secondTry || waited <= w.limit(other, missing, now) {
			return false
		}

		behind = true
	}

	return behind
}

// limit returns how long the pull may have waited, if it goes on to wait for what the other one
// downloads.
func (w *waiter) limit(other sharing, missing []int, now time.Time) time.Duration {
	above, _ := slices.BinarySearch(missing, other.layers)
	missing = missing[:above]

	if slices.ContainsFunc(missing, func(i int) bool { return w.silent(other, i) && !other.began(w.layers, i) }) {
		return maxWait
	}

	limit := slack
	if w.own.bytes > 0 {
		above, _ = slices.BinarySearch(w.lacked, other.layers)
		limit += seconds(float64(w.bytes(w.lacked[:above])) / float64(min(w.own.bytes, copyRate)) * 3 / 2)
	}

	rest, rate := other.download(w.layers, missing, now)
	if rest == 0 {
		return limit + seconds(float64(w.bytes(missing))/unpackRate) // all has arrived
	}

	return limit - seconds(float64(rest)/rate)
}

// download returns how many bytes the other pull has to download of missing layers, and how many
// of layers that both have arrive in a second.
func (s sharing) download(layers []types.BlobInfo, missing []int, now time.Time) (rest int64, rate float64) {
	s.pull.lock.Lock()
	defer s.pull.lock.Unlock()

	for _, i := range missing {
		rest += s.pull.reports[layers[i].Digest].rest(size(layers[i]))
	}

	for _, layer := range layers[:s.layers] {
		rate += float64(s.pull.reports[layer.Digest].since(now.Add(-rateWindow))) / rateWindow.Seconds()
	}

	return rest, rate
}

// rest returns how much of a blob of that size has not arrived. The copy says nothing of what
// arrives in less than ReportInterval after its last report.
func (r report) rest(size int64) int64 {
	last := len(r.arrived) - 1

	switch {
	case r.done || r.reused:
		return 0
	case last < 0, r.arrived[last].bytes > size: // nothing yet, or something else
		return size
	}

	step := r.arrived[last].bytes
	if last > 0 {
		step -= r.arrived[last-1].bytes
	}

	return max(size-r.arrived[last].bytes-step*3/2, 0)
}

// since returns how many bytes of a blob have arrived since then.
func (r report) since(then time.Time) int64 {
	if len(r.arrived) == 0 {
		return 0
	}

	before := int64(0)

	for _, a := range r.arrived {
		if !a.at.After(then) {
			before = a.bytes
		}
	}

	return r.arrived[len(r.arrived)-1].bytes - before
}

// withArrival adds the last one, and drops what is not needed to know a rate from now on.
func withArrival(arrived []arrival, last arrival) []arrival {
	old := 0
	for old+1 < len(arrived) && last.at.Sub(arrived[old+1].at) >= rateWindow {
		old++
	}

	return append(slices.Delete(arrived, 0, old), last)
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

// seconds is a duration, of a year at the most.
func seconds(s float64) time.Duration {
	return time.Duration(min(s, 365*24*3600) * float64(time.Second))
}

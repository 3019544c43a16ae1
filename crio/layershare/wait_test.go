package layershare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	specsv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/types"
)

var base = layer("base", 100*mb)

// on returns an image that lies on layers, with one of its own.
func (n *node) on(name string, layers ...specsv1.Descriptor) *image {
	return n.image("registry.example.com/"+name, append(layers[:len(layers):len(layers)], layer(name, 25*mb))...)
}

func (n *node) several(count int, layers ...specsv1.Descriptor) (images []*image) {
	for i := range count {
		images = append(images, n.on(fmt.Sprint("app-", i), layers...))
	}

	return images
}

func noErrors(t *testing.T, results []pulled) {
	t.Helper()

	for i, result := range results {
		if result.err != nil {
			t.Errorf("pull %d: %v", i, result.err)
		}
	}
}

func within(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()

	if got < low || got > high {
		t.Errorf("%s took %s, want %s to %s", what, got, low, high)
	}
}

func TestBaseIsDownloadedOnce(t *testing.T) {
	for _, count := range []int{2, 5, 20} {
		for _, index := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				images := n.several(count, base)

				for _, image := range images {
					image.index = index
				}

				results := pullAll(t, images...)
				noErrors(t, results)

				if got := n.times(base); got != 1 {
					t.Errorf("%d images: the base was downloaded %d times", count, got)
				}

				// Each of the others proves that it may have the base. A member of an index is
				// read once more by each.
				want := count - 1
				if index {
					want += count
				}

				// The oldest one measures its own connection, as ten seconds are a long time.
				if n.requests != want+1 {
					t.Errorf("%d images, index %v: %d further requests, want %d", count, index, n.requests, want+1)
				}

				for _, result := range results {
					within(t, "a pull", result.took, 12500*time.Millisecond, 13*time.Second)
				}
			})
		}
	}
}

// What needs nothing of others does not wait, and asks for nothing.
func TestNothingInCommon(t *testing.T) {
	type change func(n *node, images []*image)

	for name, change := range map[string]change{
		"other layers":     func(n *node, images []*image) { images[1] = n.on("app-1", layer("other base", 100*mb)) },
		"another registry": func(_ *node, images []*image) { images[1].name = "other.example.com/app-1" },
		"little": func(n *node, images []*image) {
			images[0], images[1] = n.on("a", layer("l", 16<<20-1)), n.on("b", layer("l", 16<<20-1))
		},
		"a small part": func(n *node, images []*image) {
			images[1].layers = append(images[1].layers, layer("large", 300*mb))
		},
		"not from the bottom": func(_ *node, images []*image) {
			images[1].layers = []specsv1.Descriptor{layer("bottom", 1), base}
		},
		"encrypted": func(_ *node, images []*image) {
			for _, image := range images {
				image.layers[0].MediaType += "+encrypted"
			}
		},
		"from elsewhere": func(_ *node, images []*image) {
			for _, image := range images {
				image.layers[0].URLs = []string{"https://example.com/layer"}
			}
		},
		"no size": func(_ *node, images []*image) { images[0].layers[0].Size = -1 },
		"absurd":  func(_ *node, images []*image) { images[0].layers[0].Size = 1 << 51 },
		"absurd layers of its own": func(_ *node, images []*image) {
			images[1].layers = append(images[1].layers, layer("huge", math.MaxInt64), layer("as huge", math.MaxInt64))
		},
		"no digest": func(_ *node, images []*image) { images[0].layers[0].Digest, images[1].layers[0].Digest = "a", "a" },
		"artifacts": func(_ *node, images []*image) { images[0].config = "application/vnd.example" },
		"an artifact": func(_ *node, images []*image) {
			images[1].config = specsv1.MediaTypeEmptyJSON
		},
		"too many layers": func(_ *node, images []*image) {
			for i := range maxLayers {
				images[1].layers = append(images[1].layers, layer(fmt.Sprint(i), 0))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				images := n.several(2, base)
				change(n, images)

				images[0].download = func(ctx context.Context, _ specsv1.Descriptor) error { return load(ctx, 10*rate, rate, func() {}) }
				images[1].download = func(context.Context, specsv1.Descriptor) error { return nil }
				results := pullAll(t, images...)
				noErrors(t, results)
				within(t, "the second pull", results[1].took, 0, 0)

				if n.requests != 0 {
					t.Errorf("%d further requests", n.requests)
				}
			})
		})
	}
}

// It is just worth waiting for 16 MiB.
func TestJustWorthwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, just := newNode(), layer("l", 16<<20)
		noErrors(t, pullAll(t, n.on("a", just), n.on("b", just)))

		if got := n.times(just); got != 1 {
			t.Errorf("the layer was downloaded %d times", got)
		}
	})
}

// It is just worth waiting for 1 MiB if nothing else is to be downloaded.
func TestJustWorthwhileForAll(t *testing.T) {
	for bytes, want := range map[int64]int{1 << 20: 1, 1<<20 - 1: 2} {
		synctest.Test(t, func(t *testing.T) {
			n, all := newNode(), layer("l", bytes)
			noErrors(t, pullAll(t, n.image("registry.example.com/a", all), n.image("registry.example.com/b", all)))

			if got := n.times(all); got != want {
				t.Errorf("a layer of %d bytes was downloaded %d times, want %d", bytes, got, want)
			}
		})
	}
}

// A third image shares more with the second than with the first.
func TestBaseOnBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, runtime := newNode(), layer("runtime", 50*mb)
		results := pullAll(t, n.on("a", base), n.on("b", base, runtime), n.on("c", base, runtime))
		noErrors(t, results)

		if n.times(base) != 1 || n.times(runtime) != 1 {
			t.Errorf("the base was downloaded %d times, the runtime %d", n.times(base), n.times(runtime))
		}
	})
}

// The store is asked for one layer at a time, as it takes them one by one.
func TestManyLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()

		var layers []specsv1.Descriptor
		for i := range 100 {
			layers = append(layers, layer(fmt.Sprint(i), 2*mb))
		}

		noErrors(t, pullAll(t, n.several(2, layers...)...))

		if got := n.times(layers[99]); got != 1 {
			t.Errorf("the last layer was downloaded %d times", got)
		}

		// Both copies look for each, the waiter for all and then a hundred times.
		if n.looks > 1000 {
			t.Errorf("%d looks at the store", n.looks)
		}
	})
}

func TestWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.stored[base.Digest] = true

		noErrors(t, pullAll(t, n.several(5, base)...))

		if n.requests != 0 || n.times(base) != 0 {
			t.Errorf("%d further requests, %d downloads of a base that is there", n.requests, n.times(base))
		}
	})
}

// An older pull has the base in the store in a form that is not found by its digest.
func TestReusedInAnotherForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)
		images[0].again, images[1].again = base.Digest, base.Digest

		results := pullAll(t, images...)
		noErrors(t, results)
		within(t, "the second pull", results[1].took, 2500*time.Millisecond, 3*time.Second)
	})
}

var errDownload = errors.New("500")

// fail makes a download fail when so many bytes have come.
func (i *image) fail(bytes int64, err error) {
	i.download = func(ctx context.Context, layer specsv1.Descriptor) error {
		return errors.Join(i.load(ctx, layer, bytes, rate), err)
	}
}

func TestFirstPullFails(t *testing.T) {
	for name, tc := range map[string]struct {
		change    func(*image)
		downloads int           // of the base
		took      time.Duration // of the last pull
	}{
		"in the base": {func(i *image) { i.fail(50*mb, errDownload) }, 2, 5*time.Second + 12500*time.Millisecond},
		"at once":     {func(i *image) { i.fail(0, errDownload) }, 2, 12500 * time.Millisecond},
		"after the base": {func(i *image) {
			i.download = func(ctx context.Context, layer specsv1.Descriptor) error {
				if layer.Digest == base.Digest {
					return i.load(ctx, layer, layer.Size, rate)
				}

				return errDownload
			}
		}, 1, 12500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				images := n.several(5, base)
				tc.change(images[0])
				results := pullAll(t, images...)

				if !errors.Is(results[0].err, errDownload) {
					t.Errorf("the first pull: %v", results[0].err)
				}

				noErrors(t, results[1:])

				if got := n.times(base); got != tc.downloads {
					t.Errorf("the base was downloaded %d times, want %d", got, tc.downloads)
				}

				within(t, "the last pull", results[4].took, tc.took, tc.took+time.Second)
			})
		})
	}
}

func TestFirstPullIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(5, base)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error)

		go func() { first <- images[0].pull(ctx) }()

		time.AfterFunc(4*time.Second, cancel)
		time.Sleep(time.Millisecond)
		results := pullAll(t, images[1:]...)

		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first pull: %v", err)
		}

		noErrors(t, results)

		if got := n.times(base); got != 2 {
			t.Errorf("the base was downloaded %d times, want 2", got)
		}
	})
}

// Who waits is cancelled at once, and takes nobody with him.
func TestWaitingPullIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(3, base)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		cancelled := make(chan pulled)

		defer cancel()

		time.AfterFunc(500*time.Microsecond, func() {
			err := images[2].pull(ctx)
			cancelled <- pulled{err: err}
		})

		began := time.Now()

		var took time.Duration

		ended := make(chan struct{})

		go func() {
			defer close(ended)

			<-ctx.Done()
			result := <-cancelled
			took = time.Since(began)

			if !errors.Is(result.err, context.DeadlineExceeded) {
				t.Errorf("the cancelled pull: %v", result.err)
			}
		}()

		noErrors(t, pullAll(t, images[:2]...))
		<-ended
		within(t, "the cancelled pull", took, 3*time.Second, 3*time.Second+time.Millisecond)

		if got := n.times(base); got != 1 {
			t.Errorf("the base was downloaded %d times", got)
		}
	})
}

// The registry is cut off, or answers again when the oldest of those that wait tries.
func TestNothingMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(20, base)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		images[0].download = func(context.Context, specsv1.Descriptor) error { return never(ctx, base) }

		for _, image := range images {
			image.mute = true
		}

		ended := make(chan []pulled)

		go func() { ended <- pullAll(t, images...) }()

		time.Sleep(time.Minute)
		cancel()

		results := <-ended
		noErrors(t, results[1:])

		if got := n.times(base); got != 2 {
			t.Errorf("the base was downloaded %d times, want 2: the first, and the oldest of the others", got)
		}

		within(t, "the second pull", results[1].took, patience+21*time.Second, patience+23*time.Second)
	})
}

func TestRegistryIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(20, base)
		began := time.Now()
		tried := map[int]time.Duration{}

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()

		for i, image := range images {
			image.mute = true
			image.download = func(context.Context, specsv1.Descriptor) error {
				n.lock.Lock()
				tried[i] = time.Since(began)
				n.lock.Unlock()

				return never(ctx, base)
			}
		}

		pullAll(t, images...)

		// Everybody gets to the error that he would get alone, and soon.
		for i := range images {
			if tried[i] == 0 && i > 0 || tried[i] > 2*patience+time.Duration(i)*stagger+10*time.Second {
				t.Errorf("pull %d tried after %s", i, tried[i])
			}
		}
	})
}

// A pull that began long ago and does not get on holds up nobody.
func TestHungPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		images[0].download = never
		go images[0].pull(ctx)

		time.Sleep(time.Minute)

		results := pullAll(t, images[1])
		noErrors(t, results)
		within(t, "the second pull", results[0].took, 12500*time.Millisecond, 12500*time.Millisecond)
	})
}

// A pull that downloads the same layer on top of others does not bring it here: that it gets
// on is no reason to wait longer for one that hangs.
func TestSameLayerOnOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, second := newNode(), layer("second", 100*mb)
		n.stored[base.Digest] = true

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		go func() {
			other := n.on("other", base, layer("between", mb), second)

			pull := n.pulls.Begin(other, other.store())
			defer pull.End()

			if _, err := pull.Source().NewImageSource(ctx, amd64); err != nil {
				t.Error(err)
			}

			// One byte a second.
			_ = load(ctx, 1<<40, 1, func() { pull.Observe(readOf(second)) })
		}()

		time.Sleep(time.Millisecond)

		hangs := n.on("hangs", base, second)
		hangs.download = never
		go hangs.pull(ctx)

		time.Sleep(time.Millisecond)

		waits := n.on("waits", base, second)
		waits.mute = true
		results := pullAll(t, waits)
		noErrors(t, results)
		// 9 s for 95 MiB that may be unpacked.
		within(t, "the pull that waits", results[0].took, patience+(9+12)*time.Second, patience+(9+13)*time.Second)
	})
}

// A pull whose own rate nobody can measure does not wait for ever, and those that wait for it notice
// that it downloads then.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		images[0].download = func(ctx context.Context, layer specsv1.Descriptor) error {
			return images[0].load(ctx, layer, layer.Size, 1)
		}
		images[1].mute = true
		images[1].download = func(ctx context.Context, layer specsv1.Descriptor) error {
			if now := images[1].now.now().phase; now != resigned {
				t.Errorf("the second pull is in phase %d, want %d", now, resigned)
			}

			return images[1].load(ctx, layer, layer.Size, rate)
		}

		go images[0].pull(ctx)

		time.Sleep(time.Second)

		results := pullAll(t, images[1])
		noErrors(t, results)
		within(t, "the second pull", results[0].took, maxWait+12500*time.Millisecond, maxWait+13*time.Second)
	})
}

// Whatever becomes of the first pull, or of its connection, the others end at most half as long
// again and five seconds later than without sharing, and the base is downloaded once more at most.
func TestNeverMuchLater(t *testing.T) {
	slow := func(rate int64) func(*image) {
		return func(first *image) {
			first.download = func(ctx context.Context, layer specsv1.Descriptor) error {
				return first.load(ctx, layer, layer.Size, rate)
			}
		}
	}
	halfway := func(then func(ctx context.Context, first *image, layer specsv1.Descriptor) error) func(*image) {
		return func(first *image) {
			first.download = func(ctx context.Context, layer specsv1.Descriptor) error {
				if err := first.load(ctx, layer, layer.Size/2, rate); err != nil {
					return err
				}

				return then(ctx, first, layer)
			}
		}
	}

	for name, change := range map[string]func(first *image){
		"1 B/s":           slow(1),
		"20 kB/s":         slow(20_000),
		"1 MB/s":          slow(mb),
		"stalled":         func(first *image) { first.download = never },
		"no answer":       func(first *image) { first.index, first.slow, first.download = true, time.Hour, never },
		"stalled halfway": halfway(func(ctx context.Context, _ *image, layer specsv1.Descriptor) error { return never(ctx, layer) }),
		"failed halfway":  halfway(func(context.Context, *image, specsv1.Descriptor) error { return errDownload }),
		"cancelled":       halfway(func(context.Context, *image, specsv1.Descriptor) error { return context.Canceled }),
		"slow from halfway": halfway(func(ctx context.Context, first *image, layer specsv1.Descriptor) error {
			return first.loadFrom(ctx, layer, layer.Size/2, layer.Size, 20_000)
		}),
		"more than its size": func(first *image) {
			first.download = func(ctx context.Context, layer specsv1.Descriptor) error {
				return first.load(ctx, layer, math.MaxInt64, 5*mb)
			}
		},
	} {
		for _, size := range []int64{17 * mb, 100 * mb, 1000 * mb} {
			t.Run(fmt.Sprint(name, " in ", size/mb, " MB"), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n, base := newNode(), layer("base", size)
					images := n.several(10, base)
					change(images[0])

					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()

					go images[0].pull(ctx)

					time.Sleep(time.Millisecond)

					results := pullAll(t, images[1:]...)
					noErrors(t, results)

					alone := time.Duration(size+25*mb) * time.Second / rate
					for i, result := range results {
						within(t, fmt.Sprint("pull ", i+1), result.took, 0, alone*3/2+5*time.Second)
					}

					if got := n.times(base); got > 2 {
						t.Errorf("the base was downloaded %d times", got)
					}
				})
			})
		}
	}
}

// The oldest of those that wait tries, also if the rate of others is measured earlier.
func TestOldestTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(5, base)
		images[0].download = func(ctx context.Context, layer specsv1.Descriptor) error {
			return images[0].load(ctx, layer, layer.Size, 20_000)
		}
		images[1].reads = mb

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		go images[0].pull(ctx)

		time.Sleep(time.Millisecond)
		noErrors(t, pullAll(t, images[1:]...))

		if got := n.times(base); got != 2 {
			t.Errorf("the base was downloaded %d times, want 2", got)
		}

		if now := images[1].now.now().phase; now != resigned {
			t.Errorf("the second pull is in phase %d, want %d", now, resigned)
		}
	})
}

// What the first pull does before its first byte, or a pause, is no slow connection: on a full
// link nobody tries.
func TestPauses(t *testing.T) {
	for name, pauses := range map[string][]time.Duration{
		"before the first byte": {3 * time.Second, 0},
		"half way":              {0, 3 * time.Second},
		"both":                  {3 * time.Second, 3 * time.Second},
	} {
		for _, link := range []int64{mb, 10 * mb} {
			for _, bytes := range []int64{20 * mb, 200 * mb} {
				synctest.Test(t, func(t *testing.T) {
					n, base := newNode(), layer("base", bytes)
					n.link = link
					images := n.several(5, base)
					images[0].download = func(ctx context.Context, layer specsv1.Descriptor) error {
						time.Sleep(pauses[0])

						if err := images[0].load(ctx, layer, layer.Size/2, rate); err != nil {
							return err
						}

						time.Sleep(pauses[1])

						return images[0].loadFrom(ctx, layer, layer.Size/2, layer.Size, rate)
					}
					noErrors(t, pullAll(t, images...))

					if got := n.times(base); got != 1 {
						t.Errorf("a pause %s, %d bytes over %d B/s: the base was downloaded %d times", name, bytes, link, got)
					}
				})
			}
		}
	}
}

// Pods that are deleted, one after the other, are nobody's failure.
func TestTwoAreCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.link = 10 * mb
		images := n.several(20, base)

		for i, after := range []time.Duration{4 * time.Second, 8 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()

			go images[i].pull(ctx)

			time.Sleep(time.Millisecond)
		}

		noErrors(t, pullAll(t, images[2:]...))

		if got := n.times(base); got != 3 {
			t.Errorf("the base was downloaded %d times, want 3", got)
		}
	})
}

// Two failures have some more pulls try, and not all.
func TestTwoFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()

		images := n.several(20, base)
		for _, image := range images[:2] {
			image.fail(50*mb, errDownload)
		}

		noErrors(t, pullAll(t, images...)[2:])

		if got := n.times(base); got > 5 {
			t.Errorf("the base was downloaded %d times, want at most 5", got)
		}
	})
}

// A copy has several connections: that a single one of another pull is as fast as this one's is not
// enough.
func TestSeveralConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()

		var layers []specsv1.Descriptor
		for i := range 6 {
			layers = append(layers, layer(fmt.Sprint(i), 100*mb))
		}

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		go func() {
			other := n.on("other", layers...)
			other.now = n.pulls.Begin(other, other.store())

			defer other.now.End()

			if _, err := other.now.Source().NewImageSource(ctx, amd64); err != nil {
				t.Error(err)
			}

			var all sync.WaitGroup

			for _, layer := range layers {
				all.Go(func() {
					other.report(types.ProgressEventNewArtifact, layer, 0)
					_ = other.load(ctx, layer, layer.Size, 1_500_000)
				})
			}

			all.Wait()
		}()

		time.Sleep(time.Millisecond)

		waits := n.on("waits", layers...)
		waits.download = func(ctx context.Context, layer specsv1.Descriptor) error {
			return waits.load(ctx, layer, layer.Size, 6*rate) // all at once
		}
		results := pullAll(t, waits)
		noErrors(t, results)
		within(t, "the second pull", results[0].took, 0, 24*time.Second)
	})
}

// Many layers, each asked for with a slow answer, do not keep a pull from seeing that another is slow.
func TestManyQuestions(t *testing.T) {
	for count, slow := range map[int]time.Duration{30: 500 * time.Millisecond, 100: 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode()

			var layers []specsv1.Descriptor
			for i := range count {
				layers = append(layers, layer(fmt.Sprint(i), 100*mb/int64(count)))
			}

			images := n.several(2, layers...)
			images[0].download = func(ctx context.Context, layer specsv1.Descriptor) error {
				return images[0].load(ctx, layer, layer.Size, 20_000)
			}
			images[1].slow = slow

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			go images[0].pull(ctx)

			time.Sleep(time.Millisecond)

			results := pullAll(t, images[1])
			noErrors(t, results)
			within(t, "the second pull", results[0].took, 0, 24*time.Second)
		})
	}
}

// A pull that cannot measure its own rate keeps nobody from trying.
func TestOldestKnowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(5, base)
		images[0].download = func(ctx context.Context, layer specsv1.Descriptor) error {
			return images[0].load(ctx, layer, layer.Size, 20_000)
		}
		images[1].mute = true

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		go images[0].pull(ctx)

		time.Sleep(time.Millisecond)

		for _, result := range pullAll(t, images[1:]...) {
			within(t, "a pull", result.took, 0, 24*time.Second)
		}

		if got := n.times(base); got != 2 {
			t.Errorf("the base was downloaded %d times, want 2", got)
		}
	})
}

// A policy that does not answer keeps a pull no longer than the copy would.
func TestPolicyHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)
		images[1].asks = time.Hour
		images[1].download = func(context.Context, specsv1.Descriptor) error { return nil }
		results := pullAll(t, images...)
		noErrors(t, results)
		within(t, "the second pull", results[1].took, patience, patience)
	})
}

// On a link that is full a download more helps nobody: nobody tries, however long it takes.
func TestFullLink(t *testing.T) {
	for _, link := range []int64{20_000, 125_000, mb, 10 * mb} {
		for _, count := range []int{2, 10} {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				n.link = link
				noErrors(t, pullAll(t, n.several(count, base)...))

				if got := n.times(base); got != 1 {
					t.Errorf("%d pulls over %d B/s: the base was downloaded %d times", count, link, got)
				}
			})
		}
	}
}

// What a policy will refuse does not wait, and asks for nothing.
func TestRejected(t *testing.T) {
	for _, index := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode()
			images := n.several(2, base)
			images[1].rejected, images[1].index = true, index
			images[1].download = func(context.Context, specsv1.Descriptor) error { return errDownload }

			results := pullAll(t, images...)
			if !errors.Is(results[1].err, errDownload) {
				t.Error(results[1].err)
			}

			within(t, "the pull that is refused", results[1].took, 0, 0)

			if want := map[bool]int{true: 1}[index]; n.requests != want {
				t.Errorf("%d further requests, want %d", n.requests, want)
			}
		})
	}
}

// When two have failed, ten seconds each, others try beside each other, twice as many with each failure,
// instead of one after the other.
func TestDiskIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.full = true

		results := pullAll(t, n.several(20, base)...)
		for i, result := range results {
			if result.err == nil || !strings.Contains(result.err.Error(), "no space left") {
				t.Errorf("pull %d: %v", i, result.err)
			}

			within(t, "a pull", result.took, 0, 45*time.Second)
		}
	})
}

// Unpacking takes its time, and nothing is reported of what comes in parts, perhaps over a
// thin link.
func TestSilence(t *testing.T) {
	for name, change := range map[string]func(*image){
		"unpacking": func(i *image) { i.unpack = 15 * time.Second },
		"in parts": func(i *image) {
			i.silent = true
			i.download = func(ctx context.Context, layer specsv1.Descriptor) error {
				return load(ctx, layer.Size, 2*mb, func() {})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				images := n.several(2, layer("large", 150*mb))

				for _, image := range images {
					change(image)
				}

				noErrors(t, pullAll(t, images...))

				if got := n.times(images[0].layers[0]); got != 1 {
					t.Errorf("the base was downloaded %d times", got)
				}
			})
		})
	}
}

// A download without reports looks like one that hangs: waiting ends in any case.
func TestHangsInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)
		images[0].silent, images[1].silent = true, true

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		images[0].download = never
		go images[0].pull(ctx)

		time.Sleep(time.Millisecond)

		results := pullAll(t, images[1])
		noErrors(t, results)
		// 95 s for 95 MiB.
		within(t, "the second pull", results[0].took, patience+(95+12)*time.Second, patience+(95+13)*time.Second)
	})
}

// Failures of what comes in parts are seen as well.
func TestFailsInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.full = true

		images := n.several(20, base)
		for _, image := range images {
			image.silent = true
		}

		for _, result := range pullAll(t, images...) {
			within(t, "a pull", result.took, 0, 45*time.Second)
		}
	})
}

// Who was cancelled while he waited, or asked whether he may share, has not failed.
func TestCancelledInSilence(t *testing.T) {
	for _, slow := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode()

			images := n.several(5, base)
			for _, image := range images {
				image.silent = true
			}

			for _, image := range images[1:4] {
				image.slow = slow
			}

			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()

			first := make(chan error)

			go func() { first <- images[0].pull(t.Context()) }()

			time.Sleep(time.Millisecond)

			for _, image := range images[1:4] {
				go image.pull(ctx)

				time.Sleep(time.Millisecond)
			}

			noErrors(t, pullAll(t, images[4]))

			if err := <-first; err != nil {
				t.Error(err)
			}

			if got := n.times(base); got != 1 {
				t.Errorf("answers after %s: the base was downloaded %d times", slow, got)
			}
		})
	}
}

// Other pulls unpack, one after the other, before the one that is waited for: it gets on as
// soon as the store lets it.
func TestStoreIsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.unpacks = 12 * time.Second
		images := n.several(2, base)
		images[0].unpack = 200 * time.Second
		results := pullAll(t, images...)
		noErrors(t, results)

		if got := n.times(base); got != 1 {
			t.Errorf("the base was downloaded %d times", got)
		}

		within(t, "the younger pull", results[1].took, 210*time.Second, 230*time.Second)
	})
}

// Who cannot have a layer from the registry does not wait for it, and does not learn that
// somebody else has it: the pull takes as long as if he were alone.
func TestRefusedLayer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, top := newNode(), layer("top", 40*mb)
		images := n.several(2, base, top)
		images[1].refused = base.Digest
		images[1].download = func(_ context.Context, layer specsv1.Descriptor) error {
			if layer.Digest == base.Digest {
				return errDownload
			}

			return nil
		}

		results := pullAll(t, images...)
		if !errors.Is(results[1].err, errDownload) {
			t.Errorf("the second pull: %v", results[1].err)
		}

		within(t, "the second pull", results[1].took, 0, 0)

		// The layers below the refused one are shared, if it is worth it.
		n = newNode()
		images = n.several(2, base, top)
		images[1].refused = top.Digest
		noErrors(t, pullAll(t, images...))

		if n.times(base) != 1 || n.times(top) != 2 {
			t.Errorf("the base was downloaded %d times, the refused layer %d", n.times(base), n.times(top))
		}
	})
}

// A registry that does not answer the question for a layer holds up nobody for long.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, layer("large", 1000*mb))
		images[1].slow = time.Hour
		images[1].download = func(context.Context, specsv1.Descriptor) error { return nil }
		results := pullAll(t, images...)
		noErrors(t, results)
		within(t, "the second pull", results[1].took, patience, patience)
	})
}

// Nor does one that does not answer what older pulls pull, however many these are: they are
// asked at once.
func TestNoAnswerForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()

		images := n.several(20, base)
		for _, image := range images[:19] {
			image.index, image.slow = true, time.Hour
		}

		results := pullAll(t, images...)
		noErrors(t, results)

		for _, result := range results {
			// They are asked for one after the other, within a few milliseconds.
			within(t, "a pull", result.took, 12480*time.Millisecond, patience+12500*time.Millisecond)
		}
	})
}

// A pull whose image nobody learns holds up none that comes later.
func TestNoAnswerForLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)
		images[0].index, images[0].slow, images[0].download = true, time.Hour, never

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		go images[0].pull(ctx)

		time.Sleep(time.Millisecond)

		for _, want := range []time.Duration{answerTime, 0} {
			other := n.on(fmt.Sprint("other-", want), layer(fmt.Sprint("other base ", want), 100*mb))
			other.download = func(context.Context, specsv1.Descriptor) error { return nil }
			results := pullAll(t, other)
			noErrors(t, results)
			within(t, "a pull", results[0].took, want, want)
		}
	})
}

// Each answers after three seconds, which is soon enough for any number of them.
func TestLateAnswersForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()

		var images []*image
		for i := range 5 {
			images = append(images, n.on(fmt.Sprint("other-", i), layer(fmt.Sprint("base-", i), 100*mb)))
		}

		images = append(images, n.several(2, base)...)
		for _, image := range images {
			image.index, image.slow = true, 3*time.Second
		}

		noErrors(t, pullAll(t, images...))

		if got := n.times(base); got != 1 {
			t.Errorf("the base was downloaded %d times", got)
		}
	})
}

// Each of many questions is answered, but late.
func TestSlowAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		download func(context.Context, specsv1.Descriptor) error // of the older pull
		want     time.Duration
	}{
		"the older pull gets on": {nil, 1000 * time.Second}, // as fast as this one would
		"it hangs":               {never, silence + patience - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()

				var layers []specsv1.Descriptor
				for i := range 100 {
					layers = append(layers, layer(fmt.Sprint(i), 100*mb))
				}

				images := n.several(2, layers...)
				images[0].download = test.download
				images[1].slow = patience - time.Second
				images[1].download = func(context.Context, specsv1.Descriptor) error { return nil }

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()

				go images[0].pull(ctx)

				time.Sleep(time.Millisecond)

				results := pullAll(t, images[1])
				noErrors(t, results)
				within(t, "the second pull", results[0].took, test.want, test.want+500*time.Millisecond)
			})
		})
	}
}

// The first layer of a pull has failed, which is not reported, or hangs, and those above it arrive:
// they cannot be stored, so that nobody waits for them.
func TestLayersAboveAFailedOne(t *testing.T) {
	for name, events := range map[string][]types.ProgressEvent{
		"failed": {types.ProgressEventNewArtifact, types.ProgressEventDone},
		"hangs":  {types.ProgressEventNewArtifact},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, second := newNode(), layer("second", 2000*mb)

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()

				go func() {
					other := n.on("other", base, second)

					pull := n.pulls.Begin(other, other.store())
					defer pull.End()

					if _, err := pull.Source().NewImageSource(ctx, amd64); err != nil {
						t.Error(err)
					}

					for _, event := range events {
						pull.Observe(&types.ProgressProperties{Event: event, Artifact: types.BlobInfo{Digest: base.Digest}})
					}

					pull.Observe(&types.ProgressProperties{Event: types.ProgressEventNewArtifact, Artifact: types.BlobInfo{Digest: second.Digest}})
					// One byte a second.
					_ = load(ctx, 1<<40, 1, func() { pull.Observe(readOf(second)) })
				}()

				time.Sleep(time.Millisecond)

				waits := n.on("waits", base, second)
				waits.download = func(context.Context, specsv1.Descriptor) error { return nil }
				results := pullAll(t, waits)
				noErrors(t, results)
				within(t, "the pull that waits", results[0].took, rateWindow, rateWindow+time.Second)
			})
		})
	}
}

// A pull is cancelled at once also while it asks, and whoever ends takes along what he was
// asked for.
func TestCancelledWhileItAsks(t *testing.T) {
	for name, change := range map[string]func(older, younger *image){
		"what the older pulls":    func(older, _ *image) { older.index, older.slow = true, time.Hour },
		"what it pulls itself":    func(_, younger *image) { younger.index, younger.slow = true, time.Hour },
		"whether it may share it": func(_, younger *image) { younger.slow = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				images := n.several(2, base)
				change(images[0], images[1])

				older := make(chan error)

				go func() { older <- images[0].pull(t.Context()) }()

				time.Sleep(time.Millisecond)

				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()

				began := time.Now()

				if err := images[1].pull(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the cancelled pull: %v", err)
				}

				within(t, "the cancelled pull", time.Since(began), 3*time.Second, 3*time.Second)

				if err := <-older; err != nil {
					t.Errorf("the older pull: %v", err)
				}
			})
		})
	}

	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		images := n.several(2, base)
		images[0].index, images[0].slow = true, time.Hour
		images[0].fail(20*mb, errDownload)
		results := pullAll(t, images...)
		noErrors(t, results[1:])
		// The older one fails after two seconds.
		within(t, "the younger pull", results[1].took, 14400*time.Millisecond, 14500*time.Millisecond)
	})
}

// A pull that comes when the first one has ended and the second has not noticed yet waits
// for the second.
func TestComesInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, large := newNode(), layer("large", 400*mb)
		images := n.several(3, large)

		// The first ends after 30.1 s, the second looks after 30.2.
		ctx, cancel := context.WithTimeout(t.Context(), 30100*time.Millisecond)
		defer cancel()

		go images[0].pull(ctx)

		time.Sleep(time.Millisecond)

		ended := make(chan []pulled)

		go func() { ended <- pullAll(t, images[1]) }()

		time.Sleep(30149 * time.Millisecond)
		noErrors(t, append(pullAll(t, images[2]), <-ended...))

		if got := n.times(large); got != 2 {
			t.Errorf("the base was downloaded %d times, want 2", got)
		}
	})
}

// Random images, some of which fail, hang or are cancelled. Nobody waits for ever
// (synctest sees that), everybody gets the image or the error of his own, and not more is
// downloaded than without sharing.
func TestAnyMixture(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(17, seed))
			n := newNode()

			var images []*image

			errs := map[int]error{}

			for i := range 2 + random.IntN(10) {
				var layers []specsv1.Descriptor

				path := "root"
				for range random.IntN(5) {
					path += fmt.Sprint("/", random.IntN(2))
					layers = append(layers, layer(path, int64(len(path))*7*mb))
				}

				image := n.on(fmt.Sprint("app-", i), layers...)
				image.unpack = time.Duration(random.IntN(3)) * time.Second

				switch random.IntN(8) {
				case 2:
					rate := int64(100_000) << random.IntN(9)
					image.download = func(ctx context.Context, layer specsv1.Descriptor) error {
						return image.load(ctx, layer, layer.Size, rate)
					}
				case 0:
					errs[i] = fmt.Errorf("error of %d", i)
					image.fail(random.Int64N(60*mb), errs[i])
				case 1:
					errs[i] = context.DeadlineExceeded
					image.download = func(ctx context.Context, layer specsv1.Descriptor) error {
						ctx, cancel := context.WithTimeout(ctx, time.Minute)
						defer cancel()

						return never(ctx, layer)
					}
				}

				images = append(images, image)
			}

			results := pullAll(t, images...)
			needs := map[digest.Digest]int{}

			for i, result := range results {
				if !errors.Is(result.err, errs[i]) {
					t.Errorf("seed %d, pull %d: %v, want %v", seed, i, result.err, errs[i])
				}

				for _, layer := range images[i].layers {
					needs[layer.Digest]++

					if result.err == nil && !n.stored[layer.Digest] {
						t.Errorf("seed %d, pull %d: a layer is missing", seed, i)
					}
				}
			}

			for layer, times := range n.loaded {
				if times > needs[layer] {
					t.Errorf("seed %d: %s was downloaded %d times for %d images", seed, layer, times, needs[layer])
				}
			}

			if len(n.pulls.going) != 0 {
				t.Errorf("seed %d: %d pulls still go on", seed, len(n.pulls.going))
			}
		})
	}
}

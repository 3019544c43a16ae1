package layercache

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// Neighbours may be two seconds behind the registry, whatever they were ahead.
func TestPace(t *testing.T) {
	const rate = 10 * mib

	// step is so many bytes in a tenth of a second.
	type step struct{ times, coming, bytes int }

	for what, tc := range map[string]struct {
		steps []step
		late  int // after how many of them; 0 for never
	}{
		"as fast":             {steps: []step{{1000, 1, mib}}},
		"faster":              {steps: []step{{1000, 3, 2 * mib}}},
		"1 kB/s":              {steps: []step{{100, 1, 100}}, late: 21},
		"silent":              {steps: []step{{100, 1, 0}}, late: 21},
		"half as fast":        {steps: []step{{100, 1, mib / 2}}, late: 41},
		"stalled":             {steps: []step{{1000, 1, 5 * mib}, {100, 1, 0}}, late: 1021},
		"behind, and up":      {steps: []step{{19, 1, 0}, {19, 1, 2 * mib}, {19, 1, 0}, {19, 1, 2 * mib}}},
		"the registry's turn": {steps: []step{{1000, 0, 0}, {19, 1, 0}, {1000, 0, 0}, {1, 1, 30 * mib}, {19, 1, 0}}},
	} {
		p, steps, late, now := &pace{patience: 2 * time.Second}, 0, 0, time.Now()
		p.begin(rate, now)

		for _, s := range tc.steps {
			p.coming.Store(int32(s.coming))

			for range s.times {
				p.Write(make([]byte, s.bytes))

				now = now.Add(100 * time.Millisecond)
				if steps++; p.late(now) && late == 0 {
					late = steps
				}
			}
		}

		if late != tc.late {
			t.Errorf("%s: given up after %d steps, want %d", what, late, tc.late)
		}
	}
}

// Pulls are behind together, and begin anew once none is left.
func TestPaceOfPulls(t *testing.T) {
	const rate = 10 * mib

	now := time.Now()
	p := &pace{patience: 2 * time.Second}

	p.begin(rate, now)
	p.begin(rate, now)
	p.coming.Store(2)

	for range 100 { // each has half of the link
		p.Write(make([]byte, mib/2))
		p.Write(make([]byte, mib/2))

		if now = now.Add(100 * time.Millisecond); p.late(now) {
			t.Fatal("two pulls are late that are as fast as the registry together")
		}
	}

	now = now.Add(3 * time.Second)
	for range 2 {
		if !p.late(now) {
			t.Error("a pull goes on that is late")
		}

		p.end()
	}

	now = now.Add(time.Hour)
	if p.begin(rate, now); p.late(now) {
		t.Error("a new pull is late at once")
	}
}

// What counts is all that came, in the time in which something did.
func TestRates(t *testing.T) {
	now := time.Now()
	at := func(from, to float64, bytes int64) download {
		second := float64(time.Second)

		return download{now.Add(time.Duration(from * second)), now.Add(time.Duration(to * second)), bytes}
	}
	many := make([]download, 0, mostSeen+1)
	many = append(many, at(-100, -99, 100*mib))

	for range mostSeen {
		many = append(many, at(-9, -8, mib*5))
	}

	for what, tc := range map[string]struct {
		downloads []download
		want      int64
	}{
		"nothing":             {nil, 0},
		"one":                 {[]download{at(-2, -1, 10*mib)}, 10 * mib},
		"slower than allowed": {[]download{at(-20, -1, 10*mib)}, leastRate},
		"at the same time":    {[]download{at(-3, -1, 10*mib), at(-3, -2, 10*mib)}, 10 * mib},
		"one after the other": {[]download{at(-2, -1, 10*mib), at(-9, -8, 20*mib)}, 15 * mib},
		"partly together":     {[]download{at(-3, -1, 10*mib), at(-2, 0, 20*mib)}, 10 * mib},
		"one within another":  {[]download{at(-5, -1, 10*mib), at(-3, -2, 10*mib)}, 5 * mib},
		"small ones":          {[]download{at(-3, -1, 10*mib), at(-9, -8, smallBytes)}, 5 * mib},
		"long ago":            {[]download{at(-3, -1, 10*mib), at(-5000, -4999, 20*mib)}, 10 * mib},
		"the clock was set":   {[]download{at(-3, -1, 10*mib), at(-1, -3, 100*mib), at(-1, -1, 100*mib)}, 5 * mib},
		"many":                {many, mostSeen * 5 * mib},
	} {
		var r rates
		for _, d := range tc.downloads {
			r.add(d)
		}

		if got := r.rate(); got < tc.want-10 || got > tc.want+10 {
			t.Errorf("%s: %d, want %d", what, got, tc.want)
		}
	}
}

// A download took as long as its file was written.
func TestSee(t *testing.T) {
	const size, want = 3600 * mib, 10 * mib

	path := filepath.Join(t.TempDir(), "1")
	before := time.Now()

	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}

	if err := os.Chtimes(path, before, before.Add(6*time.Minute)); err != nil {
		t.Fatal(err)
	}

	c := folderOf(t, 1)
	c.keep(file, digest.FromString("of a neighbour"))

	if rate := c.rates.rate(); rate != 0 {
		t.Errorf("a neighbour's layer counts: %d", rate)
	}

	c.Keep(file, digest.FromString("of a registry"))

	if rate := c.rates.rate(); rate < want*9/10 || rate > want*11/10 {
		t.Errorf("%d bytes a second, want %d", rate, want)
	}
}

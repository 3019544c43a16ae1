package placements

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func placement(n int) Placement {
	return Placement{
		Namespace: "ns", Name: fmt.Sprint("pod-", n), UID: types.UID(fmt.Sprintf("%036d", n)), Profile: "p", Time: time.Unix(int64(n), 5), Known: "layers",
		HeldMilliseconds: 7, FeasibleNodes: 3, Chosen: Weights{"n1", 40, 10, 4, 0, 6, 2}, Best: &Weights{"n2", 70, 10, 7, 1, 2, 0}, Mean: &Mean{35.5, 8.25},
	}
}

func TestMemory(t *testing.T) {
	m := New(time.Unix(1, 0))
	if a := m.Of("ns", "pod-1"); len(a.Placements) != 0 || a.Placements == nil || !a.Since.Equal(time.Unix(1, 0)) {
		t.Errorf("an empty memory: %+v", a)
	}
	want := placement(1)
	m.Add(want)
	again := placement(1)
	again.Time, again.Best, again.Mean, again.FeasibleNodes = time.Unix(9, 0), nil, nil, 1
	m.Add(again)
	other := placement(1)
	other.Namespace = "other"
	m.Add(other)
	if got := m.Of("ns", "pod-1"); !reflect.DeepEqual(got.Placements, []Placement{again, want}) || got.Remembered != 3 {
		t.Errorf("%+v", got)
	}
	m.Undo(again.UID) // that in the other namespace is the newest of this UID
	m.Undo(again.UID)
	if got := m.Of("other", "pod-1"); len(got.Placements) != 0 {
		t.Errorf("not bound, but remembered: %+v", got)
	}
	if got := m.Savings(); len(got.Profiles) != 1 || got.Profiles[0] != (Saved{"p", 2, 12, 16.5}) { // not the one with a single node
		t.Errorf("%+v", got)
	}
}

// A scheduler without a Memory works.
func TestNoMemory(t *testing.T) {
	var m *Memory
	m.Add(placement(1))
	m.Undo(placement(1).UID)
}

func TestMemoryIsBounded(t *testing.T) {
	m := New(time.Unix(1, 0))
	for i := range Most + 5 {
		m.Add(placement(i))
	}
	if a := m.Of("ns", "pod-4"); len(a.Placements) != 0 || a.Remembered != Most || !a.Since.Equal(time.Unix(5, 5)) {
		t.Errorf("the fifth is remembered: %+v", a)
	}
	for _, i := range []int{5, Most + 4} {
		if a := m.Of("ns", fmt.Sprint("pod-", i)); len(a.Placements) != 1 || a.Placements[0].Time != time.Unix(int64(i), 5) {
			t.Errorf("%d: %+v", i, a)
		}
	}
}

// heap is what is allocated and in use.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one may not have swept everything
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // it fits
}

// A Memory that is full takes MaxBytes at most, however long the names are: with long ones, fewer
// placements are kept. Go's allocator rounds texts up, most those just above a size that it has.
func TestMemoryTakesNoMore(t *testing.T) {
	for _, test := range []struct {
		name   string
		length int
		// same is whether the best node is the chosen one, as a text of its own.
		same bool
		// least is how many placements are kept at least.
		least int
	}{
		{"as they are", 44, true, Most},
		{"none is shared", 33, false, Most * 8 / 10},
		{"short", 9, false, Most},
		{"much is rounded up", 17, false, Most},
		{"more is rounded up", 129, false, maxTexts / 1024},
		{"the longest of a size", 240, false, maxTexts / 1024},
		{"the longest", 253, true, maxTexts / 1024},
	} {
		long := func(kind string, i int) string {
			end := fmt.Sprint(kind, i)
			return strings.Repeat("x", max(0, test.length-len(end))) + end
		}
		before := heap()
		m := New(time.Unix(1, 0))
		for i := range 3 * Most {
			p := placement(i)
			p.Namespace, p.Name = long("s", i), long("n", i)
			p.Chosen.Node, p.Best.Node = long("c", i), long("b", i)
			if test.same {
				p.Best.Node = long("c", i)
			}
			m.Add(p)
		}
		if grown := heap() - before; grown > MaxBytes {
			t.Errorf("%s: the heap grew by %d bytes, %d more than it may", test.name, grown, grown-MaxBytes)
		}
		if m.texts > maxTexts || m.count < test.least {
			t.Errorf("%s: %d records with %d bytes, want %d at least", test.name, m.count, m.texts, test.least)
		}
		runtime.KeepAlive(m)
	}
}

func BenchmarkAdd(b *testing.B) {
	m, p := New(time.Now()), placement(1)
	for i := range Most { // a full one
		m.Add(placement(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Add(p)
	}
}

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
	// With the longest names that there are, fewer are kept.
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m = New(time.Unix(1, 0))
	for i := range 3 * Most {
		p := placement(i)
		p.Name = strings.Repeat("n", 240) + fmt.Sprint(i)
		p.Chosen.Node, p.Best.Node = strings.Repeat("c", 240)+fmt.Sprint(i), strings.Repeat("b", 240)+fmt.Sprint(i)
		m.Add(p)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if m.texts > maxTexts || m.count < maxTexts/1024 {
		t.Errorf("%d records of %d bytes", m.count, m.texts)
	}
	// The allocator rounds texts up a little.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > MaxBytes+MaxBytes/16 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(m)
}

func BenchmarkAdd(b *testing.B) {
	m, p := New(time.Now()), placement(1)
	b.ReportAllocs()
	for b.Loop() {
		m.Add(p)
	}
}

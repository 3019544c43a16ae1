package shapes

import (
	"slices"
	"testing"
	"time"
)

func TestShapes(t *testing.T) {
	var l list[int]
	l.add(1, 2)
	l.add(3)
	if !slices.Equal(l.all, []int{1, 2, 3}) {
		t.Error(l.all)
	}
	if n, cut := larger(7, 0, ""); n != 7 || !cut {
		t.Error(n, cut)
	}
	if n, cut := larger(6, 0, ""); n != 6 || cut {
		t.Error(n, cut)
	}
	if got := first(0, ""); got != 4 {
		t.Error(got)
	}
	if got := l.top(); got != 7 {
		t.Error(got)
	}
	if got := count(3); got != 3 {
		t.Error(got)
	}
	unused()
}

func TestSlow(t *testing.T) {
	time.Sleep(200 * time.Millisecond)
	if got := sum(1, 2); got != 6 {
		t.Error(got)
	}
}

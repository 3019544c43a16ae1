package timing

import (
	"runtime"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for want, values := range map[float64][]float64{1: {1}, 2: {3, 2, 1}, 2.5: {4, 1, 2, 3}} {
		if got := Median(values); got != want {
			t.Errorf("%v: %v, want %v", values, got, want)
		}
	}
	if got := Micros(1500 * time.Nanosecond); got != 1.5 {
		t.Errorf("1.5 µs are %v", got)
	}
}

func TestClocksGoOn(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	wall, thread := Wall(), Thread()
	for i := 0; Thread() == thread; i++ { // it works
		runtime.KeepAlive(i)
	}
	if Wall() <= wall {
		t.Errorf("from %v to %v", wall, Wall())
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, tc := range []struct {
		values []int
		p      int
		want   int
	}{
		{nil, 50, 0},
		{[]int{7}, 50, 7},
		{[]int{7}, 99, 7},
		{[]int{3, 1, 2}, 50, 2},
		{[]int{4, 1, 3, 2}, 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := Percentile(tc.values, tc.p); got != tc.want {
			t.Errorf("percentile %d of %v: got %d, want %d", tc.p, tc.values, got, tc.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the values were sorted in place")
	}
}

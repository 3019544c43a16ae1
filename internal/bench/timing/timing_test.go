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

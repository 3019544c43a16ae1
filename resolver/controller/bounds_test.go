package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/queue"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// A namespace gets 200 events at once and then one each 3 s, whatever others get, and as many lines
// in the log. None is longer than the API server takes.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, suppressed := &toldEvents{}, 0
		n := newNotifier(told, func() { suppressed++ })
		warn := func(namespace string, times, want int) {
			t.Helper()
			before := len(told.notes)
			for range times {
				n.warn(corev1.ObjectReference{Namespace: namespace}, nil, "%s", strings.Repeat("x", 2000))
			}
			if got := len(told.notes) - before; got != want {
				t.Errorf("%d of %d events, want %d", got, times, want)
			}
		}
		warn("a", 300, 200)
		warn("b", 1, 1)
		time.Sleep(3 * time.Second)
		warn("a", 2, 1)
		logged := 0
		for range 300 {
			if n.logs("a") {
				logged++
			}
		}
		if logged != eventBurst || !n.logs("b") {
			t.Errorf("%d lines in the log, want %d", logged, eventBurst)
		}
		if suppressed != 101 || len(told.notes[0]) != 1024 {
			t.Errorf("%d are suppressed, one has %d bytes", suppressed, len(told.notes[0]))
		}
	})
	r, _, told := newTestResolver(t, &fakeRegistry{resolve: func(string, []string) (*registry.Resolution, error) {
		return nil, &registry.Error{Reason: v1alpha1.ReasonNotFound, Err: errors.New("404")}
	}})
	for i := range 20 {
		r.usage.Set(imagesFor(fmt.Sprint("w", i), "ns", "reg/x:1"))
	}
	r.work(t.Context(), &queue.Queue{}, "reg/x:1")
	if n := len(told.notes); n != 5 {
		t.Errorf("%d of 20 workloads are told, want 5", n)
	}
}

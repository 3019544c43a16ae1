package prefetch

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Namespaces take turns, whoever came first and however many objects one has; each object is there once.
func TestTurns(t *testing.T) {
	queue := inTurns(func(r ctrl.Request) string { return r.Namespace })("", workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	defer queue.ShutDown()
	request := func(namespace string, n int) ctrl.Request {
		return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}}
	}
	for n := range 1000 {
		queue.Add(request("flood", n))
		queue.Add(request("flood", n))
	}
	queue.Add(request("a", 0))
	queue.Add(request("b", 0))
	queue.Add(request("b", 1))
	var got []string
	for queue.Len() > 0 {
		next, _ := queue.Get()
		got = append(got, next.String())
		queue.Done(next)
	}
	want := []string{"flood/0", "a/0", "b/0", "flood/1", "b/1", "flood/2", "flood/3"}
	if len(got) != 1003 || !slices.Equal(got[:len(want)], want) {
		t.Errorf("%d requests, first %q, want %q", len(got), got[:min(len(got), len(want))], want)
	}
}

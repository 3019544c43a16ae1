package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/lookup"
	"github.com/layer-locality/layer-locality/resolver/store"
	"github.com/layer-locality/layer-locality/resolver/usage"
)

func newTestAttempts(stored map[string]store.Failure) (*attempts, *testingclock.FakePassiveClock) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	return newAttempts(clock, func(reference string) store.Failure { return stored[reference] }), clock
}

// A failure that an earlier process noted counts, no matter under which
// reference.
func TestAttemptsOfAnEarlierProcess(t *testing.T) {
	earlier := store.Failure{Failures: 3, Reason: v1alpha1.ReasonNotFound, Message: "404"}
	a, _ := newTestAttempts(map[string]store.Failure{"second/x:1": earlier})
	image := usage.NewImage([]string{"first/x:1", "second/x:1", "third/x:1"})
	if got := a.of(image); got.Failure != earlier {
		t.Errorf("%+v, want %+v", got, earlier)
	}
	if got := a.failed(image, attempt{Failure: earlier}, v1alpha1.ReasonNotFound, "404", 0); got.Failures != 4 {
		t.Errorf("%d failures in a row, want 4", got.Failures)
	}
	a.forget(image.Key)
	if got := a.of(image); got.Failure != earlier {
		t.Errorf("%+v, want what objects say: %+v", got, earlier)
	}
}

// Circumstances change before a registry has answered: a refusal is then out of
// date, an outage is not.
func TestRetryAllowedDuringAttempt(t *testing.T) {
	tests := []struct {
		name        string
		allow       bool
		reason      string
		wait        time.Duration // that the registry asks for
		least, most time.Duration // until the next attempt
	}{
		{"refused", false, v1alpha1.ReasonUnauthorized, 0, minRefusal * 4 / 5, minRefusal * 6 / 5},
		{"refused, the registry asks for more", false, v1alpha1.ReasonUnauthorized, time.Hour, minRefusal * 4 / 5, minRefusal * 6 / 5},
		{"refused, another secret meanwhile", true, v1alpha1.ReasonUnauthorized, 0, 0, 0},
		{"refused, another secret meanwhile, the registry asks for more", true, v1alpha1.ReasonUnauthorized, time.Hour, 0, 0},
		{"no answer", false, v1alpha1.ReasonUnavailable, 0, minError * 4 / 5, minError * 6 / 5},
		{"no answer, another secret meanwhile", true, v1alpha1.ReasonUnavailable, 0, minError * 4 / 5, minError * 6 / 5},
		{"asked to wait, another secret meanwhile", true, v1alpha1.ReasonRateLimited, time.Hour, time.Hour, time.Hour},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, clock := newTestAttempts(nil)
			image := one("reg/x:1")
			before := a.of(image)
			if test.allow && a.allowRetry(image, v1alpha1.ReasonUnauthorized) {
				t.Error("nothing was refused yet")
			}
			got := a.failed(image, before, test.reason, "message", test.wait)
			if wait := got.Retry.Sub(clock.Now()); wait < test.least || wait > test.most {
				t.Errorf("retry after %v, want %v to %v", wait, test.least, test.most)
			}
			if got.Reason != test.reason || got.Failures != 1 || a.of(image) != got {
				t.Errorf("%+v, remembered %+v", got, a.of(image))
			}
			// The next attempt began after the change.
			if again := a.failed(image, a.of(image), v1alpha1.ReasonUnauthorized, "message", 0); again.Retry.Sub(clock.Now()) < minRefusal*4/5 {
				t.Errorf("retry after %v", again.Retry.Sub(clock.Now()))
			}
		})
	}
}

// A retry is allowed for the reason of the last failure, and for no other.
func TestAllowRetry(t *testing.T) {
	a, clock := newTestAttempts(nil)
	image := one("reg/x:1")
	failed := a.failed(image, a.of(image), v1alpha1.ReasonDenied, "message", 0)
	if a.allowRetry(image, v1alpha1.ReasonPlatformNotFound) || a.of(image).Retry != failed.Retry {
		t.Errorf("allowed for another reason: %+v", a.of(image))
	}
	if !a.allowRetry(image, v1alpha1.ReasonPlatformNotFound, v1alpha1.ReasonDenied) {
		t.Error("not allowed")
	}
	if got := a.of(image); got.Reason != "" || got.Retry.After(clock.Now()) || got.Failures != 1 {
		t.Errorf("%+v: at once, reported again, after as many failures", got)
	}
}

// Each namespace that brings other pull secrets is told once, and no more than
// lookup.MaxNamespaces are.
func TestNewcomers(t *testing.T) {
	a, _ := newTestAttempts(nil)
	const key = "reg/x:1"
	if got := a.takePendingNotices(key); got != nil {
		t.Errorf("%v are told of an image that nobody uses", got)
	}
	a.addPendingNotice(key, "a")
	a.addPendingNotice(key, "b")
	a.addPendingNotice(key, "a")
	if got := a.takePendingNotices(key); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v are told, want a and b", got)
	}
	if got := a.takePendingNotices(key); got != nil {
		t.Errorf("%v are told twice", got)
	}
	for i := range lookup.MaxNamespaces + 1 {
		a.addPendingNotice(key, fmt.Sprintf("namespace-%d", i))
	}
	if got := len(a.takePendingNotices(key)); got != lookup.MaxNamespaces {
		t.Errorf("%d namespaces are told, want %d", got, lookup.MaxNamespaces)
	}
}

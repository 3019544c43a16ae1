package controller

import (
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

func newTestAttempts(stored map[string]attempt) (*attempts, *testingclock.FakePassiveClock) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	return newAttempts(clock, func(reference string) attempt { return stored[reference] }), clock
}

// A failure that an earlier process noted counts, no matter under which
// reference.
func TestAttemptsOfAnEarlierProcess(t *testing.T) {
	earlier := attempt{failures: 3, reason: v1alpha1.ReasonNotFound, message: "404"}
	a, _ := newTestAttempts(map[string]attempt{"second/x:1": earlier})
	image := newImage([]string{"first/x:1", "second/x:1", "third/x:1"})
	if got := a.of(image); got != earlier {
		t.Errorf("%+v, want %+v", got, earlier)
	}
	if got := a.failed(image, earlier, v1alpha1.ReasonNotFound, "404", 0); got.failures != 4 {
		t.Errorf("%d failures in a row, want 4", got.failures)
	}
	a.forget(image.key)
	if got := a.of(image); got != earlier {
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
			if wait := got.retry.Sub(clock.Now()); wait < test.least || wait > test.most {
				t.Errorf("retry after %v, want %v to %v", wait, test.least, test.most)
			}
			if got.reason != test.reason || got.failures != 1 || a.of(image) != got {
				t.Errorf("%+v, remembered %+v", got, a.of(image))
			}
			// The next attempt began after the change.
			if again := a.failed(image, a.of(image), v1alpha1.ReasonUnauthorized, "message", 0); again.retry.Sub(clock.Now()) < minRefusal*4/5 {
				t.Errorf("retry after %v", again.retry.Sub(clock.Now()))
			}
		})
	}
}

// A retry is allowed for the reason of the last failure, and for no other.
func TestAllowRetry(t *testing.T) {
	a, clock := newTestAttempts(nil)
	image := one("reg/x:1")
	failed := a.failed(image, a.of(image), v1alpha1.ReasonDenied, "message", 0)
	if a.allowRetry(image, v1alpha1.ReasonPlatformNotFound) || a.of(image).retry != failed.retry {
		t.Errorf("allowed for another reason: %+v", a.of(image))
	}
	if !a.allowRetry(image, v1alpha1.ReasonPlatformNotFound, v1alpha1.ReasonDenied) {
		t.Error("not allowed")
	}
	if got := a.of(image); got.reason != "" || got.retry.After(clock.Now()) || got.failures != 1 {
		t.Errorf("%+v: at once, reported again, after as many failures", got)
	}
}

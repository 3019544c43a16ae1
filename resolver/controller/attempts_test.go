package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
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

// A namespace has something new to know if the reason or the message is another one. An
// image with as many namespaces as are remembered takes no other, but goes on with those.
func TestNoteSecrets(t *testing.T) {
	a, _ := newTestAttempts(nil)
	const key = "reg/x:1"
	var using []string // the namespaces that use the image
	all := func() []string { return using }
	refused := secretAttempt{reason: v1alpha1.ReasonUnauthorized, message: "wrong password"}
	for _, test := range []struct {
		name string
		now  secretAttempt
		want bool
	}{
		{"first", refused, true},
		{"the same", refused, false},
		{"another message", secretAttempt{reason: refused.reason, message: "no such user"}, true},
		{"another reason", secretAttempt{reason: v1alpha1.ReasonNotFound, message: "no such user"}, true},
		{"opened", secretAttempt{opened: time.Now()}, true},
		{"opened again", secretAttempt{opened: time.Now().Add(time.Minute)}, false},
	} {
		if got := a.noteSecrets(key, "a", test.now, all); got != test.want || a.secretsOf(key, "a") != test.now {
			t.Errorf("%s: something new is %v, want %v; remembered %+v", test.name, got, test.want, a.secretsOf(key, "a"))
		}
	}
	using = append(using, "a")
	for i := 1; i < maxSecretAttempts; i++ {
		using = append(using, fmt.Sprintf("namespace-%d", i))
		if !a.noteSecrets(key, using[i], refused, all) {
			t.Fatalf("namespace %d is not told", i)
		}
	}
	if a.noteSecrets(key, "one-too-many", refused, all) || a.secretsOf(key, "one-too-many") != (secretAttempt{}) {
		t.Error("more namespaces are remembered than maxSecretAttempts")
	}
	if !a.noteSecrets(key, "a", refused, all) || a.secretsOf(key, "a") != refused {
		t.Error("a namespace that is remembered was forgotten")
	}
	if !a.noteSecrets("reg/y:1", "one-too-many", refused, all) {
		t.Error("the bound is not of one image")
	}
	// Those that no longer use it make room.
	using = []string{"a", "namespace-1", "one-too-many"}
	if !a.noteSecrets(key, "one-too-many", refused, all) || a.secretsOf(key, "one-too-many") != refused {
		t.Error("namespaces that have gone leave no room")
	}
	if a.secretsOf(key, "namespace-1") != refused || a.secretsOf(key, "namespace-2") != (secretAttempt{}) {
		t.Error("the wrong ones are forgotten")
	}
}

// Each namespace that brings other pull secrets is told once, and no more than
// maxSecretAttempts are.
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
	for i := range maxSecretAttempts + 1 {
		a.addPendingNotice(key, fmt.Sprintf("namespace-%d", i))
	}
	if got := len(a.takePendingNotices(key)); got != maxSecretAttempts {
		t.Errorf("%d namespaces are told, want %d", got, maxSecretAttempts)
	}
}

// Nothing is left of an image that is not in use any longer.
func TestForgetSecrets(t *testing.T) {
	a, _ := newTestAttempts(nil)
	a.noteSecrets("reg/x:1", "a", secretAttempt{opened: time.Now()}, nil)
	a.noteSecrets("reg/y:1", "a", secretAttempt{opened: time.Now()}, nil)
	a.forget("reg/x:1")
	if len(a.secrets) != 1 || a.secretsOf("reg/y:1", "a").opened.IsZero() {
		t.Errorf("remembered of secrets: %v", a.secrets)
	}
}

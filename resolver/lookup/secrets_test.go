package lookup

import (
	"fmt"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// A namespace has something new to know if the reason or the message is another one. An
// image with as many namespaces as are remembered takes no other, but goes on with those.
func TestNote(t *testing.T) {
	a := &Asker{}
	const key = "reg/x:1"
	var using []string // the namespaces that use the image
	note := func(key, namespace string, now SecretAttempt) bool {
		return a.secrets.note(key, namespace, now, func() []string { return using })
	}
	refused := SecretAttempt{Reason: v1alpha1.ReasonUnauthorized, Message: "wrong password"}
	for _, test := range []struct {
		name string
		now  SecretAttempt
		want bool
	}{
		{"first", refused, true},
		{"the same", refused, false},
		{"another message", SecretAttempt{Reason: refused.Reason, Message: "no such user"}, true},
		{"another reason", SecretAttempt{Reason: v1alpha1.ReasonNotFound, Message: "no such user"}, true},
		{"opened", SecretAttempt{Opened: time.Now()}, true},
		{"opened again", SecretAttempt{Opened: time.Now().Add(time.Minute)}, false},
	} {
		if got := note(key, "a", test.now); got != test.want || a.Tried(key, "a") != test.now {
			t.Errorf("%s: something new is %v, want %v; remembered %+v", test.name, got, test.want, a.Tried(key, "a"))
		}
	}
	using = append(using, "a")
	for i := 1; i < MaxNamespaces; i++ {
		using = append(using, fmt.Sprintf("namespace-%d", i))
		if !note(key, using[i], refused) {
			t.Fatalf("namespace %d is not told", i)
		}
	}
	if note(key, "one-too-many", refused) || a.Tried(key, "one-too-many") != (SecretAttempt{}) {
		t.Error("more namespaces are remembered than MaxNamespaces")
	}
	if !note(key, "a", refused) || a.Tried(key, "a") != refused {
		t.Error("a namespace that is remembered was forgotten")
	}
	if !note("reg/y:1", "one-too-many", refused) {
		t.Error("the bound is not of one image")
	}
	// Those that no longer use it make room.
	using = []string{"a", "namespace-1", "one-too-many"}
	if !note(key, "one-too-many", refused) || a.Tried(key, "one-too-many") != refused {
		t.Error("namespaces that have gone leave no room")
	}
	if a.Tried(key, "namespace-1") != refused || a.Tried(key, "namespace-2") != (SecretAttempt{}) {
		t.Error("the wrong ones are forgotten")
	}
}

// Nothing is left of an image that is not in use any longer.
func TestForget(t *testing.T) {
	a := &Asker{}
	for _, key := range []string{"reg/x:1", "reg/y:1"} {
		a.secrets.note(key, "a", SecretAttempt{Opened: time.Now()}, nil)
	}
	a.Forget("reg/x:1")
	if len(a.secrets.byKey) != 1 || a.Tried("reg/y:1", "a").Opened.IsZero() {
		t.Errorf("remembered of secrets: %v", a.secrets.byKey)
	}
}

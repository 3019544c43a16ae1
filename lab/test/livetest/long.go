package livetest

import (
	"os"
	"testing"
)

// Long skips a test, unless FULL=1 is set, as make test-all does. instead is what make test has of
// it: the processors of two-core machines are busy from its begin to its end, so it has room only for tests
// that show most.
func Long(t testing.TB, instead string) {
	t.Helper()
	if os.Getenv("FULL") == "" {
		t.Skip("FULL=1, make test-all; make test has " + instead)
	}
}

// Package testkit has what tests of several packages share.
package testkit

import "testing"

// Must ends a test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

//go:build imagelayers

package main

import (
	"strings"
	"testing"
)

// The build that cannot ask registries says which one can, whatever it is asked.
func TestCollectIsElsewhere(t *testing.T) {
	for _, args := range [][]string{{"collect"}, {"collect", "--from-cluster", "-o", "file"}, {"collect", "--help"}} {
		if _, _, err := execute(t.Context(), t, args...); err == nil || !strings.Contains(err.Error(), "go run ./cmd/layersim collect") {
			t.Errorf("%q: error %v", args, err)
		}
	}
}

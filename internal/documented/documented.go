// Package documented tests that documents state the bounds and times of the code.
package documented

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Check fails a test for each sentence that a document in the folder docs does not have,
// wherever its lines end. The test is of a package two folders below the root.
func Check(t *testing.T, document string, sentences ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", document))
	if err != nil {
		t.Fatal(err)
	}
	for _, sentence := range sentences {
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), sentence) {
			t.Errorf("docs/%s does not have: %s", document, sentence)
		}
	}
}

// Number writes a number up to a million: 12 or 5,000.
func Number(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// Word writes a small number: two. Others stay numbers.
func Word(n int) string {
	words := []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
	if n < len(words) {
		return words[n]
	}
	return fmt.Sprint(n)
}

// Time writes seconds or whole minutes: 10 s, 5 min.
func Time(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

package livetest

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
)

// Megabytes formats a number of bytes in megabytes.
func Megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Table logs rows of cells.
func Table(t *testing.T, rows ...[]string) {
	t.Helper()
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	t.Log("\n" + text.String())
}

// Package decimal reads numbers that others have written into annotations.
package decimal

import (
	"errors"
	"strconv"
	"strings"
)

// longest is how many characters a number may have. Nobody needs more digits, and the text
// of an annotation may have 256 KiB.
const longest = 64

var errForm = errors.New("want a decimal number")

// Parse returns the number that a text has in decimal notation, with or without an exponent.
// It is finite. The error does not repeat the text, which may be long.
func Parse(text string) (float64, error) {
	text = strings.TrimSpace(text)
	// ParseFloat also takes inf, nan and hexadecimal numbers, which begin with letters or
	// have an x.
	if text == "" || len(text) > longest || strings.ContainsAny(text, "xXnNiI_") {
		return 0, errForm
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil { // too large a number is an error
		return 0, errForm
	}
	return value + 0, nil // no -0
}

package decimal

import (
	"math"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]float64{
		"0": 0, "-0": 0, "25": 25, "1600.5": 1600.5, " 7\n": 7, "1e3": 1000, "+4": 4, ".5": .5, "155597063": 155597063, "1e-400": 0, "-3": -3, "-0.1": -.1,
		strings.Repeat("0", longest-1) + "7": 7,
	} {
		got, err := Parse(text)
		if err != nil || got != want || math.Signbit(got) != (want < 0) {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", " ", "NaN", "nan", "Inf", "+Inf", "infinity", "1e400", "-1e400", "0x10", "0X1p4", "1_000", "1,5", "12 13", "1600m", "1Gi", "one", "٣",
		strings.Repeat("1", longest+1), strings.Repeat("9", 1<<20),
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%.20q: %v", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"1600", "NaN", "1e400", "-3", "0x1p-2", "1e-5", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if err == nil && (math.IsNaN(got) || math.IsInf(got, 0)) {
			t.Errorf("%q: %v", text, got)
		}
		if err != nil && got != 0 {
			t.Errorf("%q: %v with the error %v", text, got, err)
		}
	})
}

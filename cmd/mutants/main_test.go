package main

import "testing"

func TestCount(t *testing.T) {
	for want, c := range map[string]count{
		"killed=0.75 of=4 accepted=2 strict=0.50":  {killed: 3, accepted: 2, survived: 1},
		"killed=0.00 of=0 accepted=0 strict=0.00":  {},
		"killed=1.00 of=10 accepted=0 strict=1.00": {killed: 10},
	} {
		if got := c.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

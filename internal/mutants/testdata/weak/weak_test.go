package weak

import "testing"

func TestClamp(t *testing.T) {
	if got := Clamp(20); got != 10 {
		t.Errorf("got %d", got)
	}
}

package intern

import (
	"fmt"
	"testing"
	"unsafe"
)

func TestForgets(t *testing.T) {
	var n Strings
	kept := n.Intern("kept")
	for i := range 3 * generation {
		n.Intern(fmt.Sprint(i))
		if i%(generation/2) == 0 { // in use
			if again := n.Intern(string([]byte("kept"))); unsafe.StringData(again) != unsafe.StringData(kept) {
				t.Fatalf("forgot what is in use, after %d", i)
			}
		}
	}
	if size := len(n.young) + len(n.old); size > 2*generation {
		t.Errorf("%d strings are kept", size)
	}
}

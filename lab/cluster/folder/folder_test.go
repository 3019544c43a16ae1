package folder

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

func TestIdentifier(t *testing.T) {
	t.Parallel()
	a, b := Identifier("/var/lib/layer-locality/a"), Identifier("/var/lib/layer-locality/b")
	if a == b {
		t.Error("two folders have one identifier")
	}
	if len(a) > 15 {
		t.Errorf("%q is too long for the name of a link", a)
	}
}

func TestLockExcludes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "c")
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	unlock, err = Lock(dir)
	if err != nil {
		t.Fatalf("not locked again: %v", err)
	}
	unlock()
	if _, err := Lock(filepath.Join(dir, "no", "parent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v for a folder without a parent", err)
	}
}

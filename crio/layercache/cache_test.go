package layercache

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// folderOf returns a cache that checks when it is told to, and may have that many bytes.
func folderOf(t *testing.T, most int64) *Cache {
	t.Helper()

	c, err := open(filepath.Join(t.TempDir(), Folder))
	if err != nil {
		t.Fatal(err)
	}

	c.allowed = func(int64) (int64, error) { return most, nil }

	return c
}

// pulled returns a file with that content, as a pull has it, and the digest.
func pulled(t *testing.T, content []byte) (*os.File, digest.Digest) {
	t.Helper()

	path := filepath.Join(t.TempDir(), "1")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}

	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { file.Close() })

	return file, digest.FromBytes(content)
}

// checkAll does what the cache does in the background.
func (c *Cache) checkAll() {
	for len(c.unchecked) > 0 {
		c.check(<-c.unchecked)
	}
}

func names(t *testing.T, c *Cache) (names []string) {
	t.Helper()

	entries, err := os.ReadDir(c.folder)
	if err != nil {
		t.Fatal(err)
	}

	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return names
}

// A layer outlives the file of the pull, and is not copied.
func TestKeep(t *testing.T) {
	c := folderOf(t, 1<<20)
	content := bytes.Repeat([]byte("layer"), 1000)
	file, layer := pulled(t, content)

	before, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}

	c.Keep(file, layer)

	if got := names(t, c); len(got) != 1 || got[0] == layer.Encoded() {
		t.Errorf("before the check: %q", got)
	}

	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}

	c.checkAll()

	if got := names(t, c); !slices.Equal(got, []string{layer.Encoded()}) {
		t.Fatalf("after the check: %q", got)
	}

	got, err := os.ReadFile(c.path(layer))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("other content, %v", err)
	}

	if after, err := os.Stat(c.path(layer)); err != nil || !os.SameFile(before, after) {
		t.Errorf("it was copied, %v", err)
	}

	c.Keep(file, layer) // the file is gone, and the layer there

	if got := names(t, c); len(got) != 1 || c.failed.Load() {
		t.Errorf("kept again: %q", got)
	}
}

func TestKeepNothingElse(t *testing.T) {
	content := []byte("layer")

	for what, keep := range map[string]func(*Cache, *os.File, digest.Digest){
		"that has another digest": func(c *Cache, file *os.File, _ digest.Digest) { c.Keep(file, digest.FromString("another")) },
		"of another algorithm":    func(c *Cache, file *os.File, _ digest.Digest) { c.Keep(file, digest.SHA512.FromBytes(content)) },
		"with a path as digest":   func(c *Cache, file *os.File, _ digest.Digest) { c.Keep(file, "sha256:../../x") },
		"without a name": func(c *Cache, file *os.File, layer digest.Digest) {
			os.Remove(file.Name())
			c.Keep(file, layer)
		},
		"whose name leads elsewhere": func(c *Cache, file *os.File, layer digest.Digest) {
			os.Rename(file.Name(), file.Name()+".old")
			os.WriteFile(file.Name(), content, 0o600)
			c.Keep(file, layer)
		},
		"whose name is a link": func(c *Cache, file *os.File, layer digest.Digest) {
			os.Rename(file.Name(), file.Name()+".old")
			os.Symlink(file.Name()+".old", file.Name())
			c.Keep(file, layer)
		},
		"that is more than may wait": func(c *Cache, file *os.File, layer digest.Digest) {
			c.unchecked = make(chan unchecked)
			c.Keep(file, layer)
		},
	} {
		c := folderOf(t, 1<<20)
		file, layer := pulled(t, content)
		keep(c, file, layer)
		c.checkAll()

		if got := names(t, c); len(got) > 0 {
			t.Errorf("a file %s: %q", what, got)
		}
	}

	file, layer := pulled(t, content)

	var none *Cache
	none.Keep(file, layer)
}

// keepTwo has the cache keep a layer, which it returns, and another one that is not checked yet.
func keepTwo(t *testing.T, c *Cache) digest.Digest {
	t.Helper()

	file, layer := pulled(t, []byte("layer"))
	c.Keep(file, layer)
	c.checkAll()

	file, unchecked := pulled(t, []byte("another"))
	c.Keep(file, unchecked)

	if got := names(t, c); len(got) != 2 {
		t.Fatalf("before: %q", got)
	}

	return layer
}

// What a process before left half done goes; what it kept stays.
func TestOpenAfterACrash(t *testing.T) {
	c := folderOf(t, 1<<20)
	layer := keepTwo(t, c)

	if _, err := open(c.folder); err != nil {
		t.Fatal(err)
	}

	if got := names(t, c); !slices.Equal(got, []string{layer.Encoded()}) {
		t.Errorf("after: %q", got)
	}
}

// The oldest goes first, and all of it if nothing may be there.
func TestTrim(t *testing.T) {
	c := folderOf(t, 1<<20)

	var layers []string

	for i := range 4 {
		content := bytes.Repeat([]byte{byte(i)}, 100)
		file, layer := pulled(t, content)

		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(file.Name(), at, at); err != nil {
			t.Fatal(err)
		}

		c.Keep(file, layer)

		layers = append(layers, layer.Encoded())
	}

	c.checkAll()

	for _, tc := range []struct {
		most int64
		left int
	}{{400, 4}, {399, 3}, {250, 2}, {-1, 0}} {
		c.allowed = func(int64) (int64, error) { return tc.most, nil }
		c.Trim()

		want := slices.Sorted(slices.Values(layers[4-tc.left:]))
		if got := names(t, c); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %q, want %q", tc.most, got, want)
		}
	}
}

// A file that has another link takes space although it is removed: more goes until there is enough.
func TestTrimWithoutEffect(t *testing.T) {
	c := folderOf(t, 1<<20)

	for i := range 3 {
		file, layer := pulled(t, bytes.Repeat([]byte{byte(i)}, 100))
		c.Keep(file, layer)
	}

	c.checkAll()

	c.allowed = func(kept int64) (int64, error) { return kept - 1, nil }
	c.Trim()

	if got := names(t, c); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// What has no room is not kept for a moment.
func TestNoRoom(t *testing.T) {
	c := folderOf(t, 99)
	file, layer := pulled(t, make([]byte, 100))
	c.Keep(file, layer)

	if got := names(t, c); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

func TestRemove(t *testing.T) {
	root := t.TempDir()
	if err := Remove(root); err != nil {
		t.Fatal(err)
	}

	c, err := open(filepath.Join(root, Folder))
	if err != nil {
		t.Fatal(err)
	}

	c.allowed = func(int64) (int64, error) { return 1 << 20, nil }
	keepTwo(t, c)

	if err := Remove(root); err != nil {
		t.Fatal(err)
	}

	if got := names(t, c); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

func TestAllowed(t *testing.T) {
	const gib = 1 << 30

	for _, tc := range []struct{ size, free, kept, want int64 }{
		{1000 * gib, 500 * gib, 0, 32 * gib},
		{100 * gib, 90 * gib, 0, 10 * gib},
		{100 * gib, 30 * gib, 0, 5 * gib},
		{100 * gib, 25 * gib, 5 * gib, 5 * gib},
		{100 * gib, 24 * gib, 5 * gib, 4 * gib},
		{100 * gib, 16 * gib, 5 * gib, -4 * gib}, // before the kubelet's 15 GiB
	} {
		if got := allowedOf(tc.size, tc.free, tc.kept); got != tc.want {
			t.Errorf("%d of %d GiB free, %d kept: %d, want %d", tc.free/gib, tc.size/gib, tc.kept/gib, got/gib, tc.want/gib)
		}
	}

	if allowed, err := folderOf(t, 0).allowedOnDisk(0); err != nil || allowed == 0 {
		t.Errorf("on this disk: %d, %v", allowed, err)
	}
}

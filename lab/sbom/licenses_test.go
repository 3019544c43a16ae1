package sbom

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

// license returns the text of a license.
func license(t *testing.T, name string) string {
	t.Helper()
	text, err := assets.ReadLicenseFile("License/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCollect(t *testing.T) {
	mit, bsd := license(t, "MIT/pristine.txt"), license(t, "BSD-3-Clause/pristine.txt")
	for name, test := range map[string]struct {
		files map[string]string
		texts []string // without: an error
		want  string   // the license or the error
	}{
		"of linked packages and above": {
			map[string]string{
				"LICENSE": mit, "NOTICE": "Copyright Somebody", "linked/third/COPYING": bsd,
				"other/LICENSE": "not even a license", "LICENSE.docs": "of documentation", "license.go": "package a",
			},
			[]string{"LICENSE", "NOTICE", "linked/third/COPYING"},
			"BSD-3-Clause AND MIT",
		},
		"only in a package": {map[string]string{"linked/third/UNLICENSE.md": mit}, []string{"linked/third/UNLICENSE.md"}, "MIT"},
		"none":              {map[string]string{"README": mit, "NOTICE": "Copyright"}, nil, "module a.io/b v1.0.0: it has no license text"},
		"unknown":           {map[string]string{"LICENSE": mit, "linked/LICENCE": "all is yours"}, nil, "linked/LICENCE: of no known license"},
		"too large":         {map[string]string{"LICENSE": strings.Repeat(" ", maxText) + mit}, nil, "LICENSE: more than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			root, to := t.TempDir(), filepath.Join(t.TempDir(), "a.io/b@v1.0.0")
			for file, text := range test.files {
				write(t, filepath.Join(root, file), text)
			}
			checkCollect(t, root, to, test.texts, test.want)
		})
	}
	t.Run("link", func(t *testing.T) {
		root := t.TempDir()
		if err := os.Symlink("/etc/passwd", filepath.Join(root, "LICENSE")); err != nil {
			t.Fatal(err)
		}
		checkCollect(t, root, t.TempDir(), nil, "LICENSE: no regular file")
	})
}

// checkCollect collects the texts of a module in the folder root, with one linked package.
func checkCollect(t *testing.T, root, to string, texts []string, want string) {
	t.Helper()
	third := filepath.Join(root, "linked/third")
	if err := os.MkdirAll(third, 0o750); err != nil {
		t.Fatal(err)
	}
	modules := tree{modules: map[string]*source{
		"a.io/b": {Path: "a.io/b", Version: "v1.0.0", packages: map[string]string{"linked/third": third}},
	}}
	licenses, err := modules.collect(&debug.Module{Path: "a.io/b", Version: "v1.0.0"}, to)
	if texts == nil {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := (*licenses)[0].Expression; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	found := map[string]bool{}
	if err := filepath.WalkDir(to, func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			name, _ := filepath.Rel(to, file)
			found[name] = true
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, texts) {
		t.Errorf("got %v, want %v", got, texts)
	}
}

func TestOtherSource(t *testing.T) {
	replaced := func(path, version string) *debug.Module {
		return &debug.Module{Path: "a.io/b", Version: "v1.0.0", Replace: &debug.Module{Path: path, Version: version}}
	}
	from := tree{folder: "/src", modules: map[string]*source{
		"a.io/b": {Path: "a.io/b", Version: "v1.0.0", Replace: &source{Path: "c.io/d", Version: "v2.0.0"}},
		"a.io/c": {Path: "a.io/c"},
	}}
	for _, test := range []struct {
		module *debug.Module
		same   bool
	}{
		{replaced("c.io/d", "v2.0.0"), true},
		{&debug.Module{Path: "a.io/c", Version: "(devel)"}, true},
		{replaced("c.io/d", "v2.0.1"), false},
		{replaced("c.io/e", "v2.0.0"), false},
		{&debug.Module{Path: "a.io/b", Version: "v1.0.0"}, false},
		{&debug.Module{Path: "a.io/c", Version: "v1.0.0"}, false},
		{&debug.Module{Path: "a.io/d", Version: "v1.0.0"}, false},
	} {
		_, err := from.collect(test.module, t.TempDir())
		if other := err != nil && strings.Contains(err.Error(), "is in the binary, but not in what /src compiles"); other == test.same {
			t.Errorf("%+v: %v", test.module, err)
		}
	}
}

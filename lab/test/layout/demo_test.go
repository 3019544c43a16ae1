package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemoChoosesRelease runs scripts/demo.sh in a small clone, with other programs in place of what it calls: without
// RELEASE, it takes a release of exactly the commit that is checked out, and otherwise compiles.
func TestDemoChoosesRelease(t *testing.T) {
	t.Setenv("RELEASE", "")
	t.Setenv("LINE", "")
	const compiled = "programs: compiled from this clone"
	tag := strings.TrimSpace(output(t, "bash", "-c", `. scripts/lib.sh && v=$(our_version kubernetes) && echo "${v/+/-}"`))
	page := strings.TrimSpace(output(t, "bash", "-c", `. scripts/lib.sh && repository_url`)) + "/releases/download/" + tag
	for name, test := range map[string]struct {
		// The commit that the notes in _out/release name, "" for no release there; whether it has the demo's archive.
		notes         string
		noArchive     bool
		tag, page     bool // the commit has the tag; the releases page has it
		dirty         bool
		release, want string
	}{
		"none":                      {want: compiled},
		"in _out":                   {notes: "HEAD", want: "programs: CLONE/_out/release"},
		"in _out, another commit":   {notes: "HEAD~", want: compiled},
		"in _out, without a demo":   {notes: "HEAD", noArchive: true, want: compiled},
		"in _out, but a change":     {notes: "HEAD", dirty: true, want: compiled},
		"in _out and published":     {notes: "HEAD", tag: true, page: true, want: "programs: CLONE/_out/release"},
		"published":                 {tag: true, page: true, want: "programs: " + page},
		"published, but a change":   {tag: true, page: true, dirty: true, want: compiled},
		"published, not of HEAD":    {page: true, want: compiled},
		"a tag, not published":      {tag: true, want: compiled},
		"in _out, none wanted":      {notes: "HEAD", release: "none", want: compiled + " (RELEASE=none)"},
		"in _out, another is named": {notes: "HEAD", release: "/elsewhere", want: "programs: /elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			clone := t.TempDir()
			write := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(filepath.Join(clone, path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(clone, path), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			run := func(args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
				cmd.Dir = clone
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(clone, "_build/fake")+":"+os.Getenv("PATH"), "HOME="+clone,
					"RELEASE="+test.release)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v\n%s", args, err, out)
				}
				return strings.TrimSpace(string(out))
			}
			for _, path := range []string{"scripts/demo.sh", "scripts/lib.sh", "versions.env", "go.mod", ".gitignore"} {
				text, err := os.ReadFile(filepath.Join(root, path))
				if err != nil {
					t.Fatal(err)
				}
				write(path, string(text))
			}
			const demo = "mkdir -p %/lab && printf '#!/bin/sh\n' >%/lab/demo && chmod +x %/lab/demo\n"
			write("scripts/install-deps.sh", "#!/bin/sh\n")
			write("scripts/build.sh", "#!/bin/sh\n"+strings.ReplaceAll(demo, "%", "_build/bin"))
			write("scripts/from-release.sh", "#!/bin/sh\n"+strings.ReplaceAll(demo, "%", `"$2"`)+`echo "$1"`+"\n")
			write("_build/fake/id", "#!/bin/sh\necho 0\n")
			write("_build/fake/runc", "#!/bin/sh\n")
			published := ""
			if test.page {
				published = page + "/SHA256SUMS"
			}
			write("_build/fake/curl", "#!/bin/bash\n[ \"${!#}\" = '"+published+"' ]\n")
			run("git", "init", "--quiet")
			run("git", "add", "--all")
			for range 2 {
				run("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "--allow-empty", "--message", "t")
			}
			if test.tag {
				run("git", "tag", tag)
			}
			if test.notes != "" {
				write("_out/release/RELEASE_NOTES.md", "Patched, commit "+run("git", "rev-parse", test.notes)+".\n")
				for _, arch := range []string{"amd64", "arm64"} {
					if !test.noArchive {
						write("_out/release/layer-locality-v1-demo-"+arch+".tar.gz", "")
					}
				}
			}
			if test.dirty {
				write("new", "")
			}
			want := "==> " + strings.ReplaceAll(test.want, "CLONE", clone)
			if said := run("scripts/demo.sh"); said != want {
				t.Errorf("it reports %q, want %q", said, want)
			}
		})
	}
}

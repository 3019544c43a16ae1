package imageref

import (
	"slices"
	"strings"
	"testing"
)

const digest = "sha256:9ae97d36d26566ff84e8893c64a6dc4fe8ca6d1144bf5b87b2b85a32def253c7"

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name string
		want Canonical
	}{
		{"busybox", "docker.io/library/busybox:latest"},
		{"busybox:1.36", "docker.io/library/busybox:1.36"},
		{"library/busybox", "docker.io/library/busybox:latest"},
		{"docker.io/busybox", "docker.io/library/busybox:latest"},
		{"index.docker.io/library/busybox:latest", "docker.io/library/busybox:latest"},
		{"docker.io/library/busybox:latest", "docker.io/library/busybox:latest"},
		{"quay.io/team/app", "quay.io/team/app:latest"},
		{"localhost/app:v1", "localhost/app:v1"},
		{"localhost:5000/app", "localhost:5000/app:latest"},
		{"198.51.100.1:5000/a/b/c:v2", "198.51.100.1:5000/a/b/c:v2"},
		{"[2001:db8::1]:5000/app:v2", "[2001:db8::1]:5000/app:v2"},
		{"busybox@" + digest, digest},
		{"docker.io/library/busybox:latest@" + digest, digest},
		{"mirror.example.com/busybox@" + digest, digest},
	} {
		if got, err := Parse(test.name); err != nil || got != test.want {
			t.Errorf("Parse(%q) = %q, %v; want %q", test.name, got, err, test.want)
		}
	}
	for _, name := range []string{
		"", " ", "<none>@<none>", "<none>:<none>", "Busybox", "busybox:", "busybox@sha256:12", "a//b", "busy box",
		"/busybox", strings.Repeat("a", 300), strings.Repeat("a/", 1000) + "b", "busybox:" + strings.Repeat("t", 129),
	} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %q, want an error", name, got)
		}
	}
}

func TestCandidates(t *testing.T) {
	table := NewTable(
		map[string]string{"fedora": "registry.fedoraproject.org/fedora"},
		[]string{"docker.io", "quay.io"})
	table.AddMirror("docker.io", "mirror.example.com/hub")
	table.AddMirror("docker.io/library", "first.example.com", "second.example.com/x")

	for _, test := range []struct {
		image string
		want  []Canonical
	}{
		{"fedora:42", []Canonical{"registry.fedoraproject.org/fedora:42"}},
		{"fedora@" + digest, []Canonical{digest}},
		{"team/fedora", []Canonical{
			"docker.io/team/fedora:latest", "mirror.example.com/hub/team/fedora:latest", "quay.io/team/fedora:latest",
		}},
		{"busybox", []Canonical{
			"docker.io/library/busybox:latest", "mirror.example.com/hub/library/busybox:latest",
			"first.example.com/busybox:latest", "second.example.com/x/busybox:latest", "quay.io/busybox:latest",
		}},
		{"quay.io/team/app:v1", []Canonical{"quay.io/team/app:v1"}},
		{"docker.iox/app", []Canonical{"docker.iox/app:latest"}},
		{"localhost/app", []Canonical{"localhost/app:latest"}},
		{"localhost:5000/app", []Canonical{"localhost:5000/app:latest"}},
		{"busybox:1@" + digest, []Canonical{digest}},
		{"Not A Name", nil},
		{"", nil},
		{strings.Repeat("a", maxLength+1), nil},
	} {
		for range 2 { // the second time from the cache
			if got := table.Candidates(test.image); !slices.Equal(got, test.want) {
				t.Errorf("Candidates(%q) = %q, want %q", test.image, got, test.want)
			}
		}
	}
}

func FuzzCandidates(f *testing.F) {
	for _, seed := range []string{"busybox", "fedora:1", "quay.io/a/b@" + digest, "a:5000/b:c@" + digest, "[::1]:5/a", "\x00", "é/b"} {
		f.Add(seed, "docker.io")
	}
	f.Fuzz(func(t *testing.T, image, registry string) {
		table := NewTable(map[string]string{"fedora": "registry.fedoraproject.org/fedora"}, []string{registry, "docker.io"})
		table.AddMirror("docker.io", "mirror.example.com")
		for _, name := range table.Candidates(image) {
			// A canonical name is a fixed point, unless it is a bare digest.
			if strings.Contains(string(name), "/") {
				if again, err := Parse(string(name)); err != nil || again != name {
					t.Fatalf("%q gave %q, which parses as %q, %v", image, name, again, err)
				}
			} else if _, err := Parse("example.com/a@" + string(name)); err != nil {
				t.Fatalf("%q gave %q: %v", image, name, err)
			}
		}
	})
}

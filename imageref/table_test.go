package imageref

import (
	"slices"
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	table := NewTable(&ShortNames{
		Aliases: map[string]string{
			"fedora": "registry.fedoraproject.org/fedora", "opensuse/tumbleweed": "registry.opensuse.org/opensuse/tumbleweed",
		},
		Search: []string{"docker.io", "quay.io"},
	})
	table.AddMirror("docker.io", "mirror.example.com/hub")
	table.AddMirror("docker.io/library", "first.example.com", "second.example.com/x")

	for _, test := range []struct {
		image string
		want  []Canonical
	}{
		{"fedora:42", []Canonical{"registry.fedoraproject.org/fedora:42"}},
		{"fedora@" + zeros, []Canonical{zeros}},
		{"opensuse/tumbleweed", []Canonical{"registry.opensuse.org/opensuse/tumbleweed:latest"}},
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
		{"busybox:1@" + zeros, []Canonical{zeros}},
		{"Not A Name", nil},
		{"", nil},
		{strings.Repeat("a", MaxLength+1), nil},
	} {
		for range 2 { // the second time from the cache
			if got := table.Candidates(test.image); !slices.Equal(got, test.want) {
				t.Errorf("Candidates(%q) = %q, want %q", test.image, got, test.want)
			}
		}
	}
}

func FuzzCandidates(f *testing.F) {
	for _, seed := range []string{"busybox", "fedora:1", "quay.io/a/b@" + zeros, "a:5000/b:c@" + zeros, "[::1]:5/a", "\x00", "é/b"} {
		f.Add(seed, "docker.io")
	}
	f.Fuzz(func(t *testing.T, image, registry string) {
		table := NewTable(&ShortNames{
			Aliases: map[string]string{"fedora": "registry.fedoraproject.org/fedora"}, Search: []string{registry, "docker.io"},
		})
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

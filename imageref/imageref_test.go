package imageref

import (
	"strings"
	"testing"
)

const zeros = "sha256:9ae97d36d26566ff84e8893c64a6dc4fe8ca6d1144bf5b87b2b85a32def253c7"

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
		{"busybox@" + zeros, zeros},
		{"docker.io/library/busybox:latest@" + zeros, zeros},
		{"mirror.example.com/busybox@" + zeros, zeros},
	} {
		if got, err := Parse(test.name); err != nil || got != test.want {
			t.Errorf("Parse(%q) = %q, %v; want %q", test.name, got, err, test.want)
		}
	}
	for _, name := range []string{
		"", " ", "<none>@<none>", "<none>:<none>", "Busybox", "busybox:", "busybox@sha256:12", "a//b", "busy box",
		"busybox@md5:" + strings.Repeat("0", 32), "busybox@sha384:" + strings.Repeat("0", 96),
		"/busybox", strings.Repeat("a", 300), strings.Repeat("a/", 1000) + "b", "busybox:" + strings.Repeat("t", 129),
	} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %q, want an error", name, got)
		}
	}
}

package imageref

import (
	"slices"
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	rules := &ShortNames{
		Aliases: map[string]string{
			"fedora": "registry.fedoraproject.org/fedora", "hub": "docker.io/busybox", "gone": "",
			"opensuse/tumbleweed": "registry.opensuse.org/opensuse/tumbleweed",
		},
		Search: []string{"registry.test:5000", "docker.io", "index.docker.io"},
	}
	for _, test := range []struct {
		rules *ShortNames
		image string
		want  []string
	}{
		{&ShortNames{}, "busybox", []string{"docker.io/library/busybox:latest"}},
		{&ShortNames{}, "registry.test/a:1@" + zeros, []string{"registry.test/a@" + zeros}},
		{rules, "fedora:40", []string{"registry.fedoraproject.org/fedora:40"}},
		{rules, "fedora:40@" + zeros, []string{"registry.fedoraproject.org/fedora@" + zeros}},
		{rules, "hub", []string{"docker.io/library/busybox:latest"}},
		// The name of an alias may have several parts.
		{rules, "opensuse/tumbleweed", []string{"registry.opensuse.org/opensuse/tumbleweed:latest"}},
		{rules, "opensuse/tumbleweed:1@" + zeros, []string{"registry.opensuse.org/opensuse/tumbleweed@" + zeros}},
		{rules, "opensuse", []string{"registry.test:5000/opensuse:latest", "docker.io/library/opensuse:latest"}},
		{rules, "opensuse/leap", []string{"registry.test:5000/opensuse/leap:latest", "docker.io/opensuse/leap:latest"}},
		{rules, "docker.io/opensuse/tumbleweed", []string{"docker.io/opensuse/tumbleweed:latest"}},
		{rules, "gone", []string{"registry.test:5000/gone:latest", "docker.io/library/gone:latest"}},
		{rules, "localhost/fedora", []string{"localhost/fedora:latest"}},
		{rules, "localhost", []string{"registry.test:5000/localhost:latest", "docker.io/library/localhost:latest"}},
	} {
		references, err := test.rules.References(test.image)
		var got []string
		for _, named := range references {
			got = append(got, named.String())
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("References(%q) = %q, %v; want %q", test.image, got, err, test.want)
		}
	}
	for _, image := range []string{
		"", ":", "Busybox", "a b", "@" + zeros, "busybox@md5:" + strings.Repeat("0", 32), strings.Repeat("a/", MaxLength),
		strings.Repeat("a", 250), // too long only with docker.io/library
	} {
		if got, err := rules.References(image); err == nil {
			t.Errorf("References(%q) = %q, want an error", image, got)
		}
	}
}

func TestValidateAlias(t *testing.T) {
	for _, name := range []string{"fedora", "opensuse/tumbleweed", "a/b/c", "localhost"} {
		if err := ValidateAlias(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{
		"", "Fedora", "fedora:40", "fedora@" + zeros, "@" + zeros, "quay.io/fedora", "localhost/fedora", "host:5000/fedora", "a//b", "a/",
		strings.Repeat("a", MaxLength+1),
	} {
		if ValidateAlias(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

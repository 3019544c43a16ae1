package main

import (
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
)

func TestOlderThan(t *testing.T) {
	for server, want := range map[string]string{
		"v1.36.4": "", "v1.36.0-alpha.1": "", "v1.37.1": "", "v2.0.0": "", "": "", "gibberish": "",
		"v1.35.9": "--emulated-version=1.35", "v1.33.13-eks-1": "--emulated-version=1.33", "v1.34.1+k3s1": "--emulated-version=1.34",
	} {
		got := olderThan(&version.Info{GitVersion: server}, utilversion.MustParse("1.36"))
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", server, got, want)
		}
	}
	if got := olderThan(&version.Info{GitVersion: "v1.34.4"}, utilversion.MustParse("1.34")); got != "" {
		t.Errorf("emulated: %q", got)
	}
}

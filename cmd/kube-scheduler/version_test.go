package main

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
)

func server(gitVersion string, groups ...string) *fakediscovery.FakeDiscovery {
	fake := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}, FakedServerVersion: &version.Info{GitVersion: gitVersion}}
	for _, group := range groups {
		fake.Resources = append(fake.Resources, &metav1.APIResourceList{GroupVersion: group})
	}
	return fake
}

func TestJudge(t *testing.T) {
	const devices = "resource.k8s.io/v1"
	emulated := utilversion.MustParse("1.36")
	for gitVersion, want := range map[string]string{
		"v1.36.5": "", "v1.36.0-alpha.1": "", "v1.37.1": "", "v2.0.0": "", "": "", "gibberish": "",
		"v1.35.9": "--emulated-version=1.35", "v1.33.13-eks-1": "--emulated-version=1.33", "v1.34.1+k3s1": "--emulated-version=1.34",
	} {
		for _, groups := range [][]string{{devices}, {"apps/v1"}} {
			text, hopeless, err := judge(server(gitVersion, groups...), emulated, true)
			if err != nil || (want == "") != (text == "") || !strings.Contains(text, want) {
				t.Errorf("%q: %q, %v, want %q", gitVersion, text, err, want)
			}
			if wait := want != "" && groups[0] != devices; hopeless != wait || wait != strings.Contains(text, "for ever") {
				t.Errorf("%q with %s: waits for ever is %t, want %t: %q", gitVersion, groups, hopeless, wait, text)
			}
		}
	}
	// A server that works as an older one does.
	for minor, want := range map[string]string{"33": "v1.36.5 (it works as 1.33 does) and has no " + devices, "36": "", "": "", "x": ""} {
		old := server("v1.36.5", "apps/v1")
		old.FakedServerVersion.EmulationMajor, old.FakedServerVersion.EmulationMinor = "1", minor
		text, hopeless, err := judge(old, emulated, true)
		if err != nil || hopeless != (want != "") || (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("works as 1.%s: %q, %t, %v, want %q", minor, text, hopeless, err, want)
		}
	}
	// Without devices, nothing waits for their resources.
	if text, hopeless, err := judge(server("v1.33.1"), emulated, false); err != nil || hopeless || text == "" {
		t.Errorf("without devices: %q, %t, %v", text, hopeless, err)
	}
	if text, hopeless, err := judge(server("v1.33.4"), utilversion.MustParse("1.33"), true); text != "" || hopeless || err != nil {
		t.Errorf("emulated: %q, %t, %v", text, hopeless, err)
	}
	// An apiserver that does not answer is asked again, not given up.
	away := server("v1.33.4")
	away.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if _, hopeless, err := judge(away, emulated, true); err == nil || hopeless {
		t.Errorf("away: %t, %v", hopeless, err)
	}
}

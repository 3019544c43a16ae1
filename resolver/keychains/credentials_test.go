package keychains

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/layer-locality/layer-locality/internal/registrytest"
)

var login = registrytest.Login

// An administrator may want a registry to be asked without credentials, too, in that order.
func TestAnonymousAmongKeychains(t *testing.T) {
	ann := login("a.test", "ann", "s3cret")
	for _, c := range []struct {
		keychains []authn.Keychain
		users     []string
	}{
		{[]authn.Keychain{ann, Anonymous}, []string{"ann", ""}},
		{[]authn.Keychain{Anonymous, ann, Anonymous}, []string{"", "ann"}},
		{[]authn.Keychain{NotAnonymously}, nil},
		{nil, []string{""}},
	} {
		found, err := For(t.Context(), "a.test", "x", c.keychains)
		var users []string
		for _, credential := range found {
			users = append(users, credential.Config.Username)
		}
		if err != nil || !slices.Equal(users, c.users) {
			t.Errorf("%v: %q, error %v, want %q", c.keychains, users, err, c.users)
		}
	}
}

func TestDockerHubNames(t *testing.T) {
	want := []authn.AuthConfig{{Username: "a", Password: "1"}, {Username: "b", Password: "2"}}
	got, err := For(t.Context(), "docker.io", "library/busybox", []authn.Keychain{
		login("docker.io", "a", "1"),
		login("index.docker.io", "b", "2"),
		registrytest.Keychain{Registry: "docker.io", Credential: authn.AuthConfig{Username: "a", Password: "1", Auth: "YTox"}},
	})
	var configs []authn.AuthConfig
	for _, c := range got {
		configs = append(configs, c.Config)
	}
	if err != nil || !reflect.DeepEqual(configs, want) {
		t.Errorf("%v, %v, want %v", configs, err, want)
	}
}

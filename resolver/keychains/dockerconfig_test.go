package keychains

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

func TestDockerConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := FromDockerConfig(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	write(`{"auths":`)
	if _, err := FromDockerConfig(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
	write("")
	if empty, err := FromDockerConfig(path); err != nil || empty == nil {
		t.Errorf("an empty file, which has no credentials: %v, %v", empty, err)
	}
	write(`{"auths":{"https://index.docker.io/v1/":{"auth":"YW5uOnMzY3JldA=="},"*.example.com":{"username":"bob","password":"1"},"registry.test/team":{"username":"cleo","password":"2"}}}`)
	keychain, err := FromDockerConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	user := func(image string) string {
		t.Helper()
		got, err := get(t.Context(), keychain, image)
		if err != nil {
			t.Fatal(err)
		}
		return got.Username
	}
	for _, c := range [][2]string{
		{"index.docker.io/library/busybox", "ann"},
		{"eu.example.com/app", "bob"},
		{"example.com/app", ""},
		{"registry.test/team/app", "cleo"},
		{"registry.test/other/app", ""},
	} {
		if got := user(c[0]); got != c[1] {
			t.Errorf("%s: user %q, want %q", c[0], got, c[1])
		}
	}
	write(`{"auths":{"registry.test":{"username":"dora","password":"3"}}}`)
	if got := user("registry.test/other/app"); got != "dora" {
		t.Errorf("after the file changed: user %q, want dora", got)
	}
	write(strings.Repeat(" ", maxDockerConfig+1))
	if _, err := get(t.Context(), keychain, "registry.test/app"); err == nil {
		t.Error("a file larger than a Secret is read")
	}
}

// A docker config is parsed again only if it has changed.
func TestDockerConfigIsParsedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	write := func(user string) {
		if err := os.WriteFile(path, []byte(`{"auths":{"registry.test":{"username":"`+user+`","password":"x"}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(d *dockerConfig) authn.Keychain {
		t.Helper()
		k, err := d.load()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write("ann")
	d := &dockerConfig{path: path}
	first := load(d)
	if load(d); reflect.ValueOf(d.keyring).Pointer() != reflect.ValueOf(first).Pointer() {
		t.Error("the same file was parsed twice")
	}
	write("bob")
	if second := load(d); reflect.ValueOf(second).Pointer() == reflect.ValueOf(first).Pointer() {
		t.Error("a new file was not parsed")
	}
}

func TestDockerConfigTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"auths":{}}`+strings.Repeat(" ", maxDockerConfig)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromDockerConfig(path); err == nil || !strings.Contains(err.Error(), "1048576 bytes") {
		t.Errorf("a docker config that is too large: %v", err)
	}
}

func TestReadAtMost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if content, err := ReadAtMost(path, 10); err != nil || string(content) != "0123456789" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := ReadAtMost(path, 9); err == nil || !strings.Contains(err.Error(), "more than 9 bytes") {
		t.Errorf("error %v", err)
	}
}

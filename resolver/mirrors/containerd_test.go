package mirrors

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/imageref"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// asked returns where a reference is asked for by rules, each with "!" if insecurely; nothing if there is no rule.
func asked(t *testing.T, rules *Rules, name string) string {
	t.Helper()
	named, err := imageref.Full(name)
	if err != nil {
		t.Fatal(err)
	}
	rule := rules.Find(named)
	if rule == nil {
		rule = rules.FindAny(named)
	}
	if rule == nil {
		return ""
	}
	use := "tag-only"
	if strings.Contains(name, "@") {
		use = "digest-only"
	}
	var found []string
	for _, m := range rule.Mirrors {
		if m.PullFromMirror == use {
			found = append(found, m.Location+map[bool]string{true: "!"}[m.Insecure])
		}
	}
	if !rule.Blocked {
		found = append(found, rule.Location)
	}
	return strings.Join(found, " ")
}

var byDigest = "@sha256:" + strings.Repeat("a", 64)

func TestFromContainerd(t *testing.T) {
	dir := t.TempDir()
	hosts := func(folder, text string) { write(t, filepath.Join(dir, folder, "hosts.toml"), text) }
	hosts("docker.io", `
server = "https://registry-1.docker.io"
[host."https://z.test"]
[host."http://a.test:5000"]
  capabilities = ["pull"]
[host."https://harbor.test/v2/hub"]
  capabilities = ["pull", "resolve"]
  override_path = true
[host."https://artifactory.test/artifactory/api/docker/hub/v2"]
  override_path = true
[host."https://push.test"]
  capabilities = ["push"]
`)
	hosts("quay.io", "server = \"https://only.test\"\nskip_verify = true\n")
	hosts("same.test", "server = \"https://same.test:443\"\nskip_verify = true\n")
	hosts("own.test_5000_", "[host.\"mirror.test\"]\n  skip_verify = true\n")
	hosts("_default", "[host.\"http://127.0.0.1:30020\"]\n")
	hosts("broken.test", "[host")
	write(t, filepath.Join(dir, "certificates.test", "ca.crt"), "x")
	entries, errs, err := FromContainerd(dir)
	if text := fmt.Sprint(errs); err != nil || len(errs) != 2 || !strings.Contains(text, "broken.test/hosts.toml") || !strings.Contains(text, "artifactory.test") {
		t.Errorf("errors %v", errs)
	}
	rules, errs := New(entries)
	if errs != nil {
		t.Error(errs)
	}
	for name, want := range map[string]string{
		"docker.io/library/nginx:1":           "z.test harbor.test/hub docker.io",
		"docker.io/library/nginx" + byDigest:  "z.test a.test:5000! harbor.test/hub docker.io",
		"quay.io/x:1":                         "only.test!",
		"own.test:5000/x:1":                   "mirror.test! own.test:5000",
		"elsewhere.test/x:1":                  "127.0.0.1:30020! elsewhere.test",
		"certificates.test/team/x" + byDigest: "", // no mirrors: asked itself
		"broken.test/x:1":                     "",
		"same.test/x:1":                       "same.test:443!",
	} {
		if got := asked(t, rules, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if _, _, err := FromContainerd(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing folder is no error")
	}
}

func TestFromK3s(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "registries.yaml"), `
mirrors:
  docker.io: {endpoint: ["https://a.test:5000", "https://harbor.test/v2/hub"]}
  rewritten.test: {endpoint: ["https://a.test"], rewrite: {"^x/(.*)": "y/$1"}}
  "*": {endpoint: ["https://cache.test"]}
  other.test: {endpoint: ["https://a.test/prefix", "https://b.test/"]}
configs:
  "a.test:5000": {tls: {insecure_skip_verify: true}, auth: {username: u, password: s3cret}}
`)
	entries, errs, err := FromK3s(file)
	if text := fmt.Sprint(errs); err != nil || len(errs) != 2 || !strings.Contains(text, "rewritten.test") || !strings.Contains(text, "a.test/prefix") {
		t.Errorf("errors %v", errs)
	}
	rules, errs := New(entries)
	if errs != nil {
		t.Error(errs)
	}
	for name, want := range map[string]string{
		"docker.io/library/nginx:1":          "a.test:5000! harbor.test/hub docker.io",
		"docker.io/library/nginx" + byDigest: "a.test:5000! harbor.test/hub docker.io",
		"other.test/x:1":                     "b.test other.test",
		"rewritten.test/x/a:1":               "",
		"elsewhere.test/x:1":                 "cache.test elsewhere.test",
	} {
		if got := asked(t, rules, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, text := range []string{`mirrors: {"*": {endpoint: ["https://cache.test"]}, own.test: }`, `mirrors: {_default: {endpoint: ["https://cache.test"]}, own.test: {}}`} {
		entries, errs, err := FromK3s(write(t, file, text))
		rules, wrong := New(entries)
		if got := asked(t, rules, "elsewhere.test/x:1") + ", " + asked(t, rules, "own.test/x:1"); err != nil || errs != nil || wrong != nil || got != "cache.test elsewhere.test, " {
			t.Errorf("%s: %q, errors %v, %v, %v", text, got, errs, wrong, err)
		}
	}
	if entries, _, err := FromK3s(write(t, file, `mirrors: {"*": }`)); err != nil || len(entries) != 0 {
		t.Errorf("any registry without mirrors: %v, error %v", entries, err)
	}
	for _, text := range []string{"mirrors: 1", "{"} {
		if entries, _, err := FromK3s(write(t, file, text)); err == nil || entries != nil {
			t.Errorf("%q: %v, error %v", text, entries, err)
		}
	}
	if again, _, _ := FromK3s(write(t, file, "mirrors: {a.test: {endpoint: [b.test]}}")); !reflect.DeepEqual(again, []Entry{{Source: "a.test"}, {Source: "a.test", Mirrors: []string{"b.test"}}, {Source: "a.test", Mirrors: []string{"b.test"}, Tags: true}}) {
		t.Errorf("%+v", again)
	}
}

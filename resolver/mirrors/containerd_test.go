package mirrors

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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

// asked returns where a reference is asked for by rules, each with its path if that is another than /v2, and with "!" if
// insecurely; nothing if there is no rule.
func asked(t *testing.T, rules *Rules, name string) string {
	t.Helper()
	named, err := imageref.Full(name)
	if err != nil {
		t.Fatal(err)
	}
	found := rules.Find(named)
	if found == nil {
		found = rules.FindAny(named)
	}
	if found == nil {
		return ""
	}
	rule, forms := found.For(named)
	var locations []string
	for i, m := range rule.Mirrors {
		path := ""
		if forms[i] != nil {
			path = strings.Replace(forms[i].Path, "/", "+/", 1)
		}
		locations = append(locations, m.Location+path+map[bool]string{true: "!"}[m.Insecure])
	}
	if !rule.Blocked {
		locations = append(locations, rule.Location)
	}
	return strings.Join(locations, " ")
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
[host."https://below.test/a b/"]
[host."https://twice.test/v2/hub"]
[host."https://below.test/second"]
[host."https://none.test"]
  override_path = true
`)
	hosts("quay.io", "server = \"https://only.test\"\nskip_verify = true\n")
	hosts("same.test", "server = \"https://same.test:443\"\nskip_verify = true\n")
	hosts("own.test_5000_", "[host.\"mirror.test\"]\n  skip_verify = true\n")
	hosts("_default", "[host.\"http://127.0.0.1:30020\"]\n")
	hosts("*.wild.test", "[host.\"https://w.test\"]\n")
	hosts("*", "[host.\"https://w.test\"]\n")
	hosts("own.test", "server = \"https://own.test/proxy\"\n")
	hosts("two.test", `
[host."https://h.test/v2/hub"]
  override_path = true
[host."https://h.test/other"]
`)
	hosts("broken.test", "[host")
	write(t, filepath.Join(dir, "certificates.test", "ca.crt"), "x")
	entries, errs, err := FromContainerd(dir)
	if text := fmt.Sprint(errs); err != nil || len(errs) != 5 || strings.Count(text, "no wildcards") != 2 || !strings.Contains(text, "broken.test/hosts.toml") ||
		!strings.Contains(text, "none.test: left out") || !strings.Contains(text, "below.test/second/v2: left out") {
		t.Errorf("errors %v", errs)
	}
	rules, errs := New(entries)
	if errs != nil {
		t.Error(errs)
	}
	const below = "artifactory.test/library/nginx+/artifactory/api/docker/hub/v2 below.test/library/nginx+/a%20b/v2 twice.test/hub/v2/library/nginx"
	for name, want := range map[string]string{
		"docker.io/library/nginx:1":           "z.test/library/nginx harbor.test/hub/library/nginx " + below + " docker.io/library/nginx",
		"docker.io/library/nginx" + byDigest:  "z.test/library/nginx a.test:5000/library/nginx! harbor.test/hub/library/nginx " + below + " docker.io/library/nginx",
		"quay.io/x:1":                         "only.test/x!",
		"own.test:5000/x:1":                   "mirror.test/x! own.test:5000/x",
		"elsewhere.test/x:1":                  "127.0.0.1:30020/x! elsewhere.test/x",
		"certificates.test/team/x" + byDigest: "", // no mirrors: asked itself
		"broken.test/x:1":                     "",
		"a.wild.test/x:1":                     "127.0.0.1:30020/x! a.wild.test/x",
		"own.test/x:1":                        "own.test/x+/proxy/v2",
		"two.test/x:1":                        "h.test/hub/x h.test/x+/other/v2 two.test/x",
		"same.test/x:1":                       "same.test:443/x!",
	} {
		if got := asked(t, rules, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if _, _, err := FromContainerd(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing folder is no error")
	}
}

// TestRewrites: what k3s' containerd rewrites in names, in forms that its users have, for its mirrors and not for the
// registry itself.
func TestRewrites(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "registries.yaml"), `
mirrors:
  docker.io: {endpoint: ["https://harbor.test", "http://b.test/v2/deep"], rewrite: {"^(.*)$": "hub/$1", "^rancher/(.*)": "copies/rancher-images/$1", "^library/alpine$": "my-org/alpine"}}
  quay.io: {endpoint: ["https://gitlab.test:443"], rewrite: {"^(.*)$": /group/dependency_proxy/containers/$1}}
  ghcr.io: {endpoint: ["https://harbor.test"], rewrite: {"^test/": "rancher/", "(": x}}
  broken.test: {endpoint: ["https://harbor.test", "https://b.test"], rewrite: {"^upper/": "UPPER/", "^out/": "../../out.test/"}}
  "*": {endpoint: ["https://harbor.test"], rewrite: {"^": "any/"}}
`)
	k3s, errs, err := FromK3s(file)
	if text := fmt.Sprint(errs); err != nil || len(errs) != 1 || !strings.Contains(text, "mirrors of ghcr.io: rewrite: ") {
		t.Errorf("errors %v, %v", errs, err)
	}
	// As k3s writes it for containerd.
	dir := t.TempDir()
	write(t, filepath.Join(dir, "registry.k8s.io", "hosts.toml"), `
server = "https://registry.k8s.io/v2"
capabilities = ["pull", "resolve", "push"]
[host]
[host."https://harbor.test/v2"]
  capabilities = ["pull", "resolve"]
  [host."https://harbor.test/v2".rewrite]
    "^(.*)$" = "k8s/$1"
`)
	write(t, filepath.Join(dir, "quay.io", "hosts.toml"), "[host.\"https://q.test\".rewrite]\n\"^x/\" = \"q/\"\n")
	containerd, errs, err := FromContainerd(dir)
	if err != nil || errs != nil {
		t.Errorf("errors %v, %v", errs, err)
	}
	ofCluster := Entry{Source: "docker.io", Mirrors: []string{"cluster.test/hub"}, Tags: true}
	rules, errs := New(slices.Concat([]Entry{ofCluster}, k3s, containerd))
	if errs != nil {
		t.Error(errs)
	}
	for name, want := range map[string]string{
		"nginx:1":                            "cluster.test/hub/library/nginx harbor.test/hub/library/nginx b.test/deep/hub/library/nginx! docker.io/library/nginx",
		"docker.io/team/a" + byDigest:        "harbor.test/hub/team/a b.test/deep/hub/team/a! docker.io/team/a",
		"rancher/pause" + byDigest:           "harbor.test/copies/rancher-images/pause b.test/deep/copies/rancher-images/pause! docker.io/rancher/pause",
		"alpine" + byDigest:                  "harbor.test/my-org/alpine b.test/deep/my-org/alpine! docker.io/library/alpine",
		"quay.io/x/y:1":                      "gitlab.test:443/group/dependency_proxy/containers/x/y q.test/q/y quay.io/x/y",
		"ghcr.io/test/kubectl:1":             "harbor.test/rancher/kubectl ghcr.io/test/kubectl",
		"ghcr.io/other/test/kubectl:1":       "harbor.test/other/test/kubectl ghcr.io/other/test/kubectl",
		"registry.k8s.io/pause:3.10":         "harbor.test/k8s/pause registry.k8s.io/pause",
		"broken.test/upper/x:1":              "broken.test/upper/x",
		"broken.test/out/x:1":                "harbor.test/out.test/x b.test/out.test/x broken.test/out/x",
		"elsewhere.test:5000/a/b" + byDigest: "harbor.test/any/a/b elsewhere.test:5000/a/b",
	} {
		if got := asked(t, rules, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestMirrorsApart: mirrors of one host are asked in their own forms, whatever their registry, and none is asked for what
// is no name there.
func TestMirrorsApart(t *testing.T) {
	form := func(path string) map[string]Form { return map[string]Form{"m.test": {Path: path}} }
	long := strings.Repeat("a", 200)
	rules, errs := New([]Entry{
		{Source: "r.test", Mirrors: []string{"m.test"}, Forms: form("/digests")},
		{Source: "r.test", Mirrors: []string{"m.test"}, Forms: form("/tags"), Tags: true},
		{Source: "*.wild.test", Mirrors: []string{"m.test", "n.test/deep"}, Forms: form("/wild"), Tags: true},
		{Source: "long.test", Mirrors: []string{"m.test", "m.test/" + strings.Repeat("b", 50)}, Tags: true},
	})
	if errs != nil {
		t.Error(errs)
	}
	for name, want := range map[string]string{
		"r.test/x:1":           "m.test/x+/tags r.test/x",
		"r.test/x" + byDigest:  "m.test/x+/digests r.test/x",
		"a.wild.test/team/x:1": "m.test/team/x+/wild n.test/deep/team/x a.wild.test/team/x",
		"long.test/" + long:    "m.test/" + long + " long.test/" + long,
	} {
		if got := asked(t, rules, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestFromK3s(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "registries.yaml"), `
mirrors:
  docker.io: {endpoint: ["https://a.test:5000", "https://harbor.test/v2/hub"]}
  "*": {endpoint: ["https://cache.test"]}
  other.test: {endpoint: ["https://a.test/prefix", "https://b.test/", "https://a.test/second"]}
  "*.wild.test": {endpoint: ["https://w.test"]}
configs:
  "a.test:5000": {tls: {insecure_skip_verify: true}, auth: {username: u, password: s3cret}}
`)
	entries, errs, err := FromK3s(file)
	if text := fmt.Sprint(errs); err != nil || len(errs) != 2 || !strings.Contains(text, "*.wild.test: left out") || !strings.Contains(text, "a.test/second: left out") {
		t.Errorf("errors %v, %v", errs, err)
	}
	rules, errs := New(entries)
	if errs != nil {
		t.Error(errs)
	}
	for name, want := range map[string]string{
		"docker.io/library/nginx:1":          "a.test:5000/library/nginx! harbor.test/hub/library/nginx docker.io/library/nginx",
		"docker.io/library/nginx" + byDigest: "a.test:5000/library/nginx! harbor.test/hub/library/nginx docker.io/library/nginx",
		"other.test/x:1":                     "a.test/x+/prefix b.test/x other.test/x",
		"elsewhere.test/x:1":                 "cache.test/x elsewhere.test/x",
		"a.wild.test/x:1":                    "cache.test/x a.wild.test/x",
	} {
		if got := asked(t, rules, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, text := range []string{`mirrors: {"*": {endpoint: ["https://cache.test"]}, own.test: }`, `mirrors: {_default: {endpoint: ["https://cache.test"]}, own.test: {}}`} {
		entries, errs, err := FromK3s(write(t, file, text))
		rules, wrong := New(entries)
		if got := asked(t, rules, "elsewhere.test/x:1") + ", " + asked(t, rules, "own.test/x:1"); err != nil || errs != nil || wrong != nil || got != "cache.test/x elsewhere.test/x, " {
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
	usual := map[string]Form{"b.test": {}}
	if again, _, _ := FromK3s(write(t, file, "mirrors: {a.test: {endpoint: [b.test]}}")); !reflect.DeepEqual(again, []Entry{{Source: "a.test"}, {Source: "a.test", Mirrors: []string{"b.test"}, Forms: usual}, {Source: "a.test", Mirrors: []string{"b.test"}, Forms: usual, Tags: true}}) {
		t.Errorf("%+v", again)
	}
}

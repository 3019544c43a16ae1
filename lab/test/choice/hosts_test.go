package choice

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
)

// TestHosts: layer-resolver asks for images where containerd does by a hosts.toml, in forms that its users have.
func TestHosts(t *testing.T) {
	containerd := newOracle(t)
	for name, c := range map[string]struct{ folder, registry, text string }{
		"none":                         {"other.test", "docker.io", "[host.'https://m.test']"},
		"as the documentation":         {"docker.io", "docker.io", "server = 'https://docker.io'\n[host.'https://m.test']\ncapabilities = ['pull', 'resolve']"},
		"an order":                     {"docker.io", "docker.io", "server = 'https://registry-1.docker.io'\n[host.'https://z.test']\n[host.'http://a.test:5000']\n[host.'https://m.test']"},
		"capabilities":                 {"quay.io", "quay.io", "[host.'https://a.test']\ncapabilities = ['pull']\n[host.'https://b.test']\ncapabilities = ['push']\n[host.'https://c.test']\ncapabilities = ['resolve']"},
		"another server":               {"quay.io", "quay.io", "server = 'https://only.test'\nskip_verify = true\n"},
		"a server and a mirror":        {"quay.io", "quay.io", "server = 'https://only.test'\n[host.'https://m.test']\nskip_verify = true"},
		"for any registry":             {"_default", "quay.io", "[host.'http://cache.test:30020']"},
		"a server for any registry":    {"_default", "quay.io", "server = 'https://cache.test'\n"},
		"a port":                       {"own.test:5000", "own.test:5000", "[host.'https://m.test:5000']"},
		"a port, in the other form":    {"own.test_5000_", "own.test:5000", "[host.'https://m.test']"},
		"no scheme":                    {"quay.io", "quay.io", "[host.'m.test']"},
		"/v2":                          {"quay.io", "quay.io", "server = 'https://quay.io/v2'\n[host.'https://m.test/v2']\n[host.'https://n.test/v2/']"},
		"a repository":                 {"docker.io", "docker.io", "[host.'https://harbor.test/v2/hub']\noverride_path = true"},
		"a repository, not overridden": {"docker.io", "docker.io", "[host.'https://harbor.test/v2/hub']"},
		"a path":                       {"docker.io", "docker.io", "[host.'https://your.mirror/docker']"},
		"a path that ends with /v2":    {"docker.io", "docker.io", "[host.'https://artifactory.test/artifactory/api/docker/hub/v2']"},
		"a path that is overridden":    {"docker.io", "docker.io", "[host.'https://mirrors.test/docker-hub/']\noverride_path = true"},
		"headers without their host":   {"docker.io", "docker.io", "[host.'https://m.test'.header]\nx = 'y'\n[host.'https://n.test']\n[host.'https://n.test'.header]\nx = 'y'"},
		"no TOML":                      {"docker.io", "docker.io", "[host"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			file := filepath.Join(folder, c.folder, "hosts.toml")
			if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			for of, digest := range map[string]string{"by tag": "", "by digest": "@sha256:" + strings.Repeat("a", 64)} {
				got, want := ours(t, folder, c.registry+"/team/app"+digest), theirs(t, containerd, folder, c.registry, digest == "")
				if got != want {
					t.Errorf("%s: layer-resolver asks %s, containerd %s", of, got, want)
				}
			}
		})
	}
}

// theirs returns where containerd asks for the images of a registry, "!" after what it asks insecurely.
func theirs(t *testing.T, o *oracle, folder, registry string, byTag bool) string {
	t.Helper()
	var hosts []struct {
		Address                 string
		Pull, Resolve, Insecure bool
	}
	o.ask(t, map[string]any{"Folder": folder, "Registry": registry}, &hosts)
	var asked []string
	for _, h := range hosts {
		if h.Pull && (h.Resolve || !byTag) {
			asked = append(asked, strings.Replace(h.Address, "registry-1.docker.io", "docker.io", 1)+map[bool]string{true: "!"}[h.Insecure])
		}
	}
	return strings.Join(asked, " ")
}

// ours returns where layer-resolver asks for an image team/app.
func ours(t *testing.T, folder, image string) string {
	t.Helper()
	named, err := imageref.Full(image)
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := mirrors.FromContainerd(folder)
	if err != nil {
		t.Fatal(err)
	}
	rules, errs := mirrors.New(entries)
	if errs != nil {
		t.Error(errs)
	}
	registry, _, _ := strings.Cut(image, "/")
	found := rules.Find(named)
	if found == nil {
		found = rules.FindAny(named)
	}
	if found == nil {
		return registry + "/v2"
	}
	rule, forms := found.For(named)
	var asked []string
	for i, m := range rule.Mirrors {
		host, below, _ := strings.Cut(strings.TrimSuffix(m.Location, "/team/app"), "/")
		path := forms[i].Path
		if path == "" {
			path = strings.TrimSuffix("/v2/"+below, "/")
		}
		asked = append(asked, host+path+map[bool]string{true: "!"}[m.Insecure])
	}
	if !rule.Blocked {
		asked = append(asked, registry+"/v2")
	}
	return strings.Join(asked, " ")
}

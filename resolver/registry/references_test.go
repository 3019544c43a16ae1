package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// writeConf writes registries.conf and its drop-ins.
func writeConf(t testing.TB, text string, dropIns ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registries.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(dropIns) > 0 {
		if err := os.Mkdir(path+".d", 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, text := range dropIns {
		if err := os.WriteFile(filepath.Join(path+".d", fmt.Sprintf("%d.conf", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestReferences(t *testing.T) {
	zeros := "sha256:" + strings.Repeat("0", 64)
	search := writeConf(t, `unqualified-search-registries = ["registry.test:5000", "docker.io"]
[aliases]
"fedora" = "registry.fedoraproject.org/fedora"
"team/app" = "quay.io/team/app"
"gone" = "quay.io/gone"
`, `[aliases]
"gone" = ""
"ubi9" = "registry.access.redhat.com/ubi9"
`)
	// No drop-in, though it is called like one.
	if err := os.Mkdir(filepath.Join(search+".d", "9.conf"), 0o700); err != nil {
		t.Fatal(err)
	}
	mirrorsOnly := writeConf(t, "[[registry]]\nlocation = \"docker.io\"\n[[registry.mirror]]\nlocation = \"mirror.test\"\n")
	for _, c := range []struct {
		conf, image string
		want        []string
	}{
		{"", "busybox", []string{"docker.io/library/busybox:latest"}},
		{"", "busybox:1", []string{"docker.io/library/busybox:1"}},
		{"", "team/app", []string{"docker.io/team/app:latest"}},
		{"", "index.docker.io/busybox", []string{"docker.io/library/busybox:latest"}},
		{"", "busybox:1@" + zeros, []string{"docker.io/library/busybox@" + zeros}},
		{"", "registry.test:5000/app", []string{"registry.test:5000/app:latest"}},
		{"", "localhost/app:1", []string{"localhost/app:1"}},
		{mirrorsOnly, "busybox", []string{"docker.io/library/busybox:latest"}},
		{search, "busybox:1", []string{"registry.test:5000/busybox:1", "docker.io/library/busybox:1"}},
		{search, "library/busybox@" + zeros, []string{"registry.test:5000/library/busybox@" + zeros, "docker.io/library/busybox@" + zeros}},
		{search, "fedora:40", []string{"registry.fedoraproject.org/fedora:40"}},
		{search, "fedora:40@" + zeros, []string{"registry.fedoraproject.org/fedora@" + zeros}},
		{search, "team/app", []string{"quay.io/team/app:latest"}},
		{search, "docker.io/team/app", []string{"docker.io/team/app:latest"}},
		{search, "ubi9", []string{"registry.access.redhat.com/ubi9:latest"}},
		{search, "gone", []string{"registry.test:5000/gone:latest", "docker.io/library/gone:latest"}},
		{search, "localhost/fedora", []string{"localhost/fedora:latest"}},
	} {
		got, err := newWorld(t, withConf(c.conf)).References(c.image)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.image, got, err, c.want)
		}
	}
	for _, conf := range []string{"", search} {
		w := newWorld(t, withConf(conf))
		for _, image := range []string{
			"", ":", "Busybox", "a b", "busybox:", "busybox@", "https://docker.io/busybox",
			"busybox@sha256:00", "busybox@md5:" + strings.Repeat("0", 32), "busybox@sha384:" + strings.Repeat("0", 96),
			strings.Repeat("a/", imageref.MaxLength), "docker.io/" + strings.Repeat("a", 256), "app\x00", "-", "/app",
		} {
			got, err := w.References(image)
			if err == nil {
				t.Errorf("%q: %q, want an error", image, got)
				continue
			}
			if e := asError(err); e.Reason != v1alpha1.ReasonInvalidReference || len(err.Error()) > maxMessage {
				t.Errorf("%q: %v", image, err)
			}
			_, err = w.Resolve(t.Context(), image, amd64, nil)
			if e := asError(err); e.Reason != v1alpha1.ReasonInvalidReference {
				t.Errorf("%q: %v", image, err)
			}
		}
	}
}

// The length limit is that of the completed name, since objects do not accept
// longer names.
func TestReferencesInFull(t *testing.T) {
	w := newWorld(t)
	for n := imageref.MaxLength - len(":latest") - 1; n <= imageref.MaxLength; n++ {
		image := strings.Repeat("a", n-len(".example/x")) + ".example/x"
		found, err := w.References(image)
		switch fits := n+len(":latest") <= imageref.MaxLength; {
		case fits && err != nil:
			t.Errorf("%d characters: %v", n, err)
		case !fits && err == nil:
			t.Errorf("%d characters stand for %d", n, len(found[0]))
		}
	}
}

func TestBrokenConf(t *testing.T) {
	for name, path := range map[string]string{
		"missing":        filepath.Join(t.TempDir(), "registries.conf"),
		"no TOML":        writeConf(t, "registries: []"),
		"mirror nowhere": writeConf(t, "[[registry]]\nlocation = \"docker.io\"\n[[registry.mirror]]\ninsecure = true\n"),
		"alias":          writeConf(t, "[aliases]\n\"fedora\" = \"fedora\"\n"),
		"drop-in":        writeConf(t, "", "[[registry]]\nblocked = true\n"),
	} {
		_, err := New(Config{Policy: mustPolicy(t), RegistriesConf: path})
		if err == nil || !strings.Contains(err.Error(), "registries.conf") && !strings.Contains(err.Error(), "fedora") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSources(t *testing.T) {
	zeros := "sha256:" + strings.Repeat("0", 64)
	conf := writeConf(t, `
[[registry]]
location = "registry.test"
[[registry.mirror]]
location = "all.test/cache"
insecure = true
[[registry.mirror]]
location = "digests.test"
pull-from-mirror = "digest-only"
[[registry.mirror]]
location = "tags.test"
pull-from-mirror = "tag-only"

[[registry]]
prefix = "*.wild.test"
[[registry.mirror]]
location = "wild-mirror.test"

[[registry]]
prefix = "moved.test/team"
location = "registry.test/teams/team"

[[registry]]
location = "ports.test"
insecure = true

[[registry]]
location = "blocked.test"
blocked = true
`)
	w := newWorld(t, withConf(conf))
	describe := func(s *source) string {
		text := s.domain + "/" + s.repository + " " + s.identifier
		if s.insecure {
			text += " insecure"
		}
		if s.listed {
			text += " listed"
		}
		return text
	}
	for _, c := range []struct {
		reference string
		want      []string
	}{
		{"registry.test/app:1", []string{"all.test/cache/app 1 insecure listed", "tags.test/app 1 listed", "registry.test/app 1 listed"}},
		{"registry.test/app@" + zeros, []string{"all.test/cache/app " + zeros + " insecure listed", "digests.test/app " + zeros + " listed", "registry.test/app " + zeros + " listed"}},
		{"a.wild.test/app:1", []string{"wild-mirror.test/app 1 listed", "a.wild.test/app 1"}},
		{"moved.test/team/app:1", []string{"registry.test/teams/team/app 1 listed"}},
		{"moved.test/other/app:1", []string{"moved.test/other/app 1"}},
		{"moved.test/team/app", []string{"registry.test/teams/team/app latest listed"}},
		{"ports.test/app:1", []string{"ports.test/app 1 insecure listed"}},
		{"ports.test:22/app:1", []string{"ports.test:22/app 1 insecure"}},
		{"other.test/app:1", []string{"other.test/app 1"}},
		{"busybox", []string{"docker.io/library/busybox latest"}},
	} {
		sources, err := w.sources(c.reference)
		var got []string
		for _, s := range sources {
			got = append(got, describe(s))
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.reference, got, err, c.want)
		}
	}
	_, err := w.Resolve(t.Context(), "blocked.test/app:1", amd64, nil)
	wantError(t, err, v1alpha1.ReasonDenied, "blocked.test is blocked in")
}

func TestMirrors(t *testing.T) {
	primaryContent, mirrorContent := &repository{}, &repository{}
	primaryID := primaryContent.push("app", manifestType, manifestOf(layerOf("a", 1)), "1", "2")
	mirrorID := mirrorContent.push("cache/app", manifestType, manifestOf(layerOf("b", 2)), "1").String()
	primary := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(primaryContent))
	mirror := listen(t, "127.0.0.1:0", "mirror.test", false, mirrorContent)
	forbidden := listen(t, "127.0.0.2:0", "forbidden.test", false, mirrorContent)
	down := listen(t, "127.0.0.1:0", "other.test", false, nil)
	down.Close()
	conf := writeConf(t, fmt.Sprintf(`
[[registry]]
location = %q
[[registry.mirror]]
location = %q
[[registry.mirror]]
location = %q
[[registry.mirror]]
location = "%s/cache"
`, primary.host, forbidden.host, down.host, mirror.host))
	// It is enough to be listed in registries.conf.
	p, err := policy.New(policy.Config{Networks: mustNetworks("127.0.0.1/32")})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, withConf(conf), func(c *Config) { c.Policy = p })
	w.names.set("forbidden.test", "127.0.0.2")
	ann := []authn.Keychain{login(primary.host, "ann", "s3cret")}

	got, err := w.Resolve(t.Context(), primary.host+"/app:1", amd64, ann)
	if err != nil || got.Digest != mirrorID {
		t.Errorf("%+v, %v, want the mirror's %s", got, err, mirrorID)
	}
	wantRequests(t, primary)
	if mirror.saw("Basic") {
		t.Error("the mirror was given the registry's credential")
	}
	got, err = w.Resolve(t.Context(), primary.host+"/app:2", amd64, ann)
	if err != nil || got.Digest != primaryID.String() {
		t.Errorf("%+v, %v, want the registry's %s", got, err, primaryID)
	}
	if id, err := w.Digest(t.Context(), primary.host+"/app:1", ann); err != nil || id != mirrorID {
		t.Errorf("%s, %v, want the mirror's %s", id, err, mirrorID)
	}
	_, err = w.Resolve(t.Context(), primary.host+"/app:3", amd64, ann)
	e := wantError(t, err, v1alpha1.ReasonNotFound, primary.host, forbidden.host+": Denied", down.host+": RegistryUnavailable", mirror.host+": NotFound")
	if e.Host != primary.host {
		t.Errorf("host %s, want %s", e.Host, primary.host)
	}
	if got := forbidden.connected(); got != 0 {
		t.Errorf("%d connections to a mirror at a forbidden address", got)
	}
}

// A registry that is marked insecure may be asked by plain HTTP and have any
// certificate, and so may its token server.
func TestInsecure(t *testing.T) {
	content := &repository{}
	content.push("app", manifestType, manifestOf(), "1")
	ts := listen(t, "127.0.0.1:0", "token.test", true, &tokenServer{users: map[string]string{"ann": "s3cret"}})
	plain := listen(t, "127.0.0.1:0", "registry.test", true, behindToken("http://"+ts.host+"/token", content, func(token string) bool {
		return strings.HasPrefix(token, "token-of-ann")
	}))
	unknown := listen(t, "127.0.0.1:0", "registry.test", false, behindPassword(content))
	w := newWorld(t, withConf(writeConf(t, fmt.Sprintf(`
[[registry]]
location = %q
insecure = true
[[registry]]
location = %q
insecure = true
`, plain.host, unknown.host))))
	w.transport.now.Load().verified.TLSClientConfig.RootCAs = nil
	for _, s := range []*server{plain, unknown} {
		if _, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{login(s.host, "ann", "s3cret")}); err != nil {
			t.Error(err)
		}
		wantRequests(t, s, "GET /v2/", "GET /v2/app/manifests/1")
	}
}

func FuzzReferences(f *testing.F) {
	for _, image := range []string{
		"busybox", "busybox:1", "fedora", "docker.io/library/busybox:latest", "registry.test:5000/a/b@sha256:" + strings.Repeat("0", 64),
		"localhost/app", "[::1]:5000/app", "a_b--c/d.e:F", "index.docker.io/x", "UPPER.test/x",
	} {
		f.Add(image)
	}
	conf := writeConf(f, `unqualified-search-registries = ["registry.test:5000", "docker.io"]
[aliases]
"fedora" = "registry.fedoraproject.org/fedora"
`)
	p, err := policy.New(policy.Config{})
	if err != nil {
		f.Fatal(err)
	}
	client, err := New(Config{Policy: p, RegistriesConf: conf})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, image string) {
		names, err := client.References(image)
		if err != nil {
			if e := asError(err); e.Reason != v1alpha1.ReasonInvalidReference || len(err.Error()) > maxMessage {
				t.Errorf("%q: %v", image, err)
			}
			return
		}
		if len(names) == 0 {
			t.Errorf("%q: neither a name nor an error", image)
		}
		for _, name := range names {
			again, err := client.References(name)
			if err != nil || !slices.Equal(again, []string{name}) {
				t.Errorf("%q means %q, which means %q, %v", image, name, again, err)
			}
			sources, err := client.sources(name)
			if err != nil || len(sources) != 1 || sources[0].identifier == "" {
				t.Errorf("%q: sources %v, %v", name, sources, err)
			}
		}
	})
}

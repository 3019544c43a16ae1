package registry

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"

	"github.com/layer-locality/layer-locality/resolver/mirrors"
)

// TestMirrorsOfCluster: mirrors for digests are not asked for tags and the other way round,
// and a source that must not be contacted is not.
func TestMirrorsOfCluster(t *testing.T) {
	content := &repository{}
	id := content.push("copy/app", manifestType, manifestOf(layerOf("a", 1)), "1")
	content.push("app", manifestType, manifestOf(layerOf("a", 1)), "1")
	source := listen(t, "127.0.0.1:0", "registry.test", false, content)
	mirror := listen(t, "127.0.0.1:0", "mirror.test", false, content)
	w := newWorld(t)
	ask := func(identifier string) error {
		source.take()
		mirror.take()
		_, err := w.Resolve(t.Context(), source.host+"/app"+identifier, amd64, nil)
		return err
	}
	digested := mirrors.Entry{Source: source.host, Mirrors: []string{mirror.host + "/copy"}}
	if errs := w.SetMirrors([]mirrors.Entry{digested}); errs != nil {
		t.Fatal(errs)
	}
	for identifier, want := range map[string][2]bool{"@" + id.String(): {false, true}, ":1": {true, false}} {
		if err := ask(identifier); err != nil {
			t.Error(err)
		}
		if got := [2]bool{len(source.take()) > 0, len(mirror.take()) > 0}; got != want {
			t.Errorf("%s: source and mirror asked: %v, want %v", identifier, got, want)
		}
	}

	digested.Only = true
	w.SetMirrors([]mirrors.Entry{digested, {Source: source.host, Mirrors: []string{mirror.host + "/copy"}, Tags: true}})
	if err := ask(":1"); err != nil || len(source.take()) > 0 {
		t.Errorf("error %v, or the source was asked", err)
	}
	wantError(t, ask("@"+digest.FromString("gone").String()), v1alpha1.ReasonNotFound, mirror.host)
	if len(source.take()) > 0 {
		t.Error("the source was asked")
	}
	w.SetMirrors([]mirrors.Entry{{Source: source.host, Only: true}})
	wantError(t, ask(":1"), v1alpha1.ReasonDenied, "is blocked in")
	w.SetMirrors(nil)
	if err := ask(":1"); err != nil {
		t.Error(err)
	}
}

// TestMirrorsBySource: the rule for the longest part of a name counts, among the cluster's
// and those of registries.conf; parts of hosts and of path segments are none.
func TestMirrorsBySource(t *testing.T) {
	w := newWorld(t, withConf(writeConf(t, `
[[registry]]
location = "quay.test"
[[registry.mirror]]
location = "file.test/quay"
[[registry]]
location = "quay.test/deep/team"
[[registry.mirror]]
location = "file.test/team"
[[registry]]
location = "blocked.test"
blocked = true
[[registry.mirror]]
location = "mirror.test/copy"
`)))
	errs := w.SetMirrors([]mirrors.Entry{
		{Source: "quay.test", Mirrors: []string{"cluster.test/quay"}, Tags: true},
		{Source: "quay.test/deep", Mirrors: []string{"cluster.test/deep"}, Tags: true},
		{Source: "*.wild.test", Mirrors: []string{"cluster.test/wild"}, Tags: true},
		{Source: "port.test:5000/a", Mirrors: []string{"blocked.test/a", "cluster.test/port"}, Tags: true},
	})
	if errs != nil {
		t.Error(errs)
	}
	for name, want := range map[string]string{
		"quay.test/x:1":           "cluster.test/quay/x quay.test/x",
		"quay.test/deep/x:1":      "cluster.test/deep/x quay.test/deep/x",
		"quay.test/deeper/x:1":    "cluster.test/quay/deeper/x quay.test/deeper/x",
		"quay.test/deep/team/x:1": "file.test/team/x quay.test/deep/team/x",
		"a.wild.test/x:1":         "cluster.test/wild/x a.wild.test/x",
		"wild.test/x:1":           "wild.test/x",
		"awild.test/x:1":          "awild.test/x",
		"port.test:5000/a/x:1":    "cluster.test/port/x port.test:5000/a/x",
		"port.test/a/x:1":         "port.test/a/x",
		"blocked.test/x:1":        "mirror.test/copy/x",
		"quay.test.evil.test/x:1": "quay.test.evil.test/x",
	} {
		sources, err := w.sources(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, s := range sources {
			got = append(got, s.domain+"/"+s.repository)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", name, got, want)
		}
	}
	// What the file says of a mirror counts for it.
	insecure := newWorld(t, withConf(writeConf(t, "[[registry]]\nlocation = \"cluster.test\"\ninsecure = true\n")))
	insecure.SetMirrors([]mirrors.Entry{{Source: "quay.test", Mirrors: []string{"cluster.test/quay"}, Tags: true}})
	if sources, err := insecure.sources("quay.test/x:1"); err != nil || !sources[0].insecure || sources[1].insecure {
		t.Errorf("error %v, or the wrong one is insecure", err)
	}
	// Of the file's own mirrors, only what stands with them does, as on the nodes.
	strict := newWorld(t, withConf(writeConf(t, "[[registry]]\nlocation = \"own.test\"\ninsecure = true\n[[registry]]\nlocation = \"quay.test\"\n[[registry.mirror]]\nlocation = \"own.test/quay\"\n")))
	if sources, err := strict.sources("quay.test/x:1"); err != nil || sources[0].domain != "own.test" || sources[0].insecure {
		t.Errorf("error %v, or a mirror is asked without TLS", err)
	}
	// Who writes a reference does not choose a registry that nobody listed.
	sources, err := w.sources("a.wild.test/x:1")
	if err != nil || !sources[0].listed || sources[1].listed {
		t.Errorf("error %v, listed are %v and %v", err, sources[0].listed, sources[1].listed)
	}
}

// TestInvalidMirrors: what is no name is left out and told; the rest counts.
func TestInvalidMirrors(t *testing.T) {
	w := newWorld(t)
	many := make([]mirrors.Entry, mirrors.MaxSources+1)
	for i := range many {
		many[i] = mirrors.Entry{Source: fmt.Sprintf("r%d.test", i)}
	}
	for i := range mirrors.MaxEach + 1 {
		many[0].Mirrors = append(many[0].Mirrors, fmt.Sprintf("m%d.test", i), "m0.test")
	}
	if errs := w.SetMirrors(many); len(errs) != 2 {
		t.Errorf("errors %v", errs)
	}
	if sources, err := w.sources("r0.test/x@" + digest.FromString("x").String()); err != nil || len(sources) != mirrors.MaxEach+1 {
		t.Errorf("%d sources, error %v", len(sources), err)
	}
	// A mirror too many leaves those for tags alone, and one that is no name leaves the rule.
	digests := mirrors.Entry{Source: "a.test", Mirrors: append(many[0].Mirrors, "no name")}
	errs := w.SetMirrors([]mirrors.Entry{digests, {Source: "a.test", Mirrors: []string{"tags.test"}, Tags: true, Only: true}})
	if sources, err := w.sources("a.test/x:1"); len(errs) != 2 || err != nil || len(sources) != 1 || sources[0].domain != "tags.test" {
		t.Errorf("errors %v; sources %v, error %v", errs, sources, err)
	}
	w.SetMirrors([]mirrors.Entry{{Source: "a.test", Mirrors: []string{"no name"}, Only: true}})
	if sources, err := w.sources("a.test/x:1"); err == nil {
		t.Errorf("%v are asked although nobody wants it", sources)
	}
	longest := "a.test/" + strings.Repeat("a", 512-len("a.test/"))
	if errs := w.SetMirrors([]mirrors.Entry{{Source: longest}}); errs != nil {
		t.Errorf("source of 512 bytes: errors %v", errs)
	}
	for _, source := range []string{longest + "a", "", "*", "*.", "a b", "https://a.test", "a.test/UPPER", "a.test/x:1", "*.a.test/x"} {
		if errs := w.SetMirrors([]mirrors.Entry{{Source: source}}); len(errs) != 1 && source != "*" { // of any registry
			t.Errorf("source %.50q: errors %v", source, errs)
		}
		if errs := w.SetMirrors([]mirrors.Entry{{Source: "a.test", Mirrors: []string{source}}}); len(errs) != 1 {
			t.Errorf("mirror %.50q: errors %v", source, errs)
		}
	}
}

// TestMirrorsOfAnyRegistry: mirrors for any registry are for those without a rule, also of registries.conf.
func TestMirrorsOfAnyRegistry(t *testing.T) {
	entries := []mirrors.Entry{{Source: "*", Mirrors: []string{"cache.test"}, Tags: true}, {Source: "own.test", Mirrors: []string{"m.test"}, Tags: true}}
	w := newWorld(t, func(c *Config) { c.Mirrors = entries }, withConf(writeConf(t, "[[registry]]\nlocation = \"file.test\"\n[[registry.mirror]]\nlocation = \"copy.test\"\n")))
	for name, want := range map[string]string{"file.test/x:1": "copy.test", "own.test/x:1": "m.test", "other.test/x:1": "cache.test"} {
		sources, err := w.sources(name)
		if err != nil || len(sources) != 2 || sources[0].domain != want {
			t.Errorf("%s: %v, error %v, want %s first", name, sources, err, want)
		}
		// Who writes a reference chooses no registry, except one that registries.conf names.
		if !sources[0].listed || sources[1].listed != (want == "copy.test") {
			t.Errorf("%s: listed are %v and %v", name, sources[0].listed, sources[1].listed)
		}
	}
}

// TestRewrittenNames: a mirror is asked for the name that nodes ask it for.
func TestRewrittenNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(file, []byte(`mirrors: {quay.test: {endpoint: ["https://harbor.test"], rewrite: {"^(.*)$": "proxy/$1"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, _, err := mirrors.FromK3s(file)
	if err != nil {
		t.Fatal(err)
	}
	// A rule of registries.conf for less of the name.
	w := newWorld(t, func(c *Config) { c.Mirrors = entries }, withConf(writeConf(t, "[[registry]]\nlocation = \"quay.test/deep\"\n[[registry.mirror]]\nlocation = \"copy.test\"\n")))
	for name, want := range map[string]string{"quay.test/team/x:1": "harbor.test proxy/team/x, quay.test team/x", "quay.test/deep/x:1": "copy.test x, quay.test deep/x"} {
		sources, err := w.sources(name)
		if err != nil || len(sources) != 2 {
			t.Errorf("%s: %v, error %v", name, sources, err)
			continue
		}
		if got := fmt.Sprintf("%s %s, %s %s", sources[0].domain, sources[0].repository, sources[1].domain, sources[1].repository); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestMirrorIsTold: a mirror that containerd asks for several registries gets to know for which, as containerd tells it
// (docs/hosts.md there: ns); a registry does not, nor a mirror of CRI-O. One at a path is asked there, also in place of the registry at the same host.
func TestMirrorIsTold(t *testing.T) {
	content := &repository{}
	id := content.push("team/x", manifestType, manifestOf(), "1")
	var told []string
	asked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			below, _, _ := strings.Cut(r.URL.Path, "/v2/")
			told = append(told, r.Method+below+"?"+r.URL.RawQuery)
			r.URL.Path = strings.TrimPrefix(r.URL.Path, below)
		}
		content.ServeHTTP(w, r)
	})
	mirror := listen(t, "127.0.0.1:0", "mirror.test", false, asked)
	entries := []mirrors.Entry{
		{Source: "*", Mirrors: []string{mirror.host}, Forms: map[string]mirrors.Form{mirror.host: {}}, Tags: true},
		{Source: "crio.test", Mirrors: []string{mirror.host}, Tags: true},
		{Source: mirror.host + "/own", Mirrors: []string{mirror.host}, Forms: map[string]mirrors.Form{mirror.host: {Path: "/proxy/v2"}}, Tags: true, Only: true},
		{Source: "below.test", Mirrors: []string{mirror.host}, Forms: map[string]mirrors.Form{mirror.host: {Path: "/api/hub%20/v2"}}, Tags: true},
	}
	w := newWorld(t, func(c *Config) { c.Mirrors = entries }, withConf(writeConf(t, fmt.Sprintf("[[registry]]\nlocation = \"file.test\"\n[[registry.mirror]]\nlocation = %q\n", mirror.host))))
	for name, want := range map[string]string{
		"any.test:5000/team/x:1":      "HEAD?ns=any.test%3A5000 GET?ns=any.test%3A5000",
		"docker.io/team/x:1":          "HEAD?ns=docker.io GET?ns=docker.io",
		"below.test/team/x:1":         "HEAD/api/hub ?ns=below.test GET/api/hub ?ns=below.test",
		"file.test/team/x:1":          "HEAD? GET?",
		"crio.test/team/x:1":          "HEAD? GET?",
		mirror.host + "/own/team/x:1": "HEAD/proxy? GET/proxy?",
		mirror.host + "/team/x:1":     "HEAD? GET?",
	} {
		told = nil
		got, err := w.Digest(t.Context(), name, nil)
		if err != nil || got != id.String() {
			t.Errorf("%s: %s, error %v", name, got, err)
		}
		if _, err := w.Resolve(t.Context(), name, amd64, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Join(told, " "); got != want {
			t.Errorf("%s: the mirror is asked %s, want %s", name, got, want)
		}
	}
}

// TestTokensOfPaths: two registries of one manager, at paths of their own, have their own token servers. What one states
// and gives does not count for the other.
func TestTokensOfPaths(t *testing.T) {
	content := &repository{}
	content.push("team/x", manifestType, manifestOf(), "1")
	ts := listen(t, "127.0.0.1:0", "token.test", false, &tokenServer{expires: 300})
	of := func(path string) http.Handler {
		return http.StripPrefix(path, behindToken("https://"+ts.host+path+"/token", content, func(token string) bool { return strings.Contains(token, "repository:team/x:pull") }))
	}
	mux := http.NewServeMux()
	mux.Handle("/hub/", of("/hub"))
	mux.Handle("/quay/", of("/quay"))
	// Another application, whose token server must not get to know who asks for these.
	mux.Handle("/v2/", behindToken("https://"+ts.host+"/other/token", content, func(string) bool { return false }))
	manager := listen(t, "127.0.0.1:0", "mirror.test", false, mux)
	var entries []mirrors.Entry
	for source, path := range map[string]string{"docker.io": "/hub/v2", "quay.io": "/quay/v2"} {
		entries = append(entries, mirrors.Entry{Source: source, Mirrors: []string{manager.host}, Forms: map[string]mirrors.Form{manager.host: {Path: path}}, Tags: true, Only: true})
	}
	w := newWorld(t, func(c *Config) { c.Mirrors = entries })
	for _, name := range []string{"docker.io/team/x:1", "quay.io/team/x:1", "docker.io/team/x:1"} {
		if _, err := w.Resolve(t.Context(), name, amd64, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantRequests(t, ts, "GET /hub/token", "GET /quay/token")
	const hub, quay = "GET /hub/v2/team/x/manifests/1", "GET /quay/v2/team/x/manifests/1"
	wantRequests(t, manager, "GET /hub/v2/", hub, "GET /quay/v2/", quay, hub)
}

// TestPathStatesNothing: what is above the repositories of a mirror at a path need not answer. The mirror is asked by TLS
// even if it may be asked without.
func TestPathStatesNothing(t *testing.T) {
	content := &repository{}
	content.push("team/x", manifestType, manifestOf(), "1")
	for _, insecure := range []bool{false, true} {
		for _, code := range []int{404, 503} {
			mirror := listen(t, "127.0.0.1:0", "mirror.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasPrefix(r.URL.Path, "/hub/v2/team/") {
					w.WriteHeader(code)
					return
				}
				http.StripPrefix("/hub", behindPassword(content)).ServeHTTP(w, r)
			}))
			entry := mirrors.Entry{Source: "docker.io", Mirrors: []string{mirror.host}, Forms: map[string]mirrors.Form{mirror.host: {Path: "/hub/v2"}}, Tags: true, Only: true}
			if insecure {
				entry.Insecure = entry.Mirrors
			}
			w := newWorld(t, func(c *Config) { c.Mirrors = []mirrors.Entry{entry} })
			ann := []authn.Keychain{login(mirror.host, "ann", "s3cret")}
			if _, err := w.Resolve(t.Context(), "docker.io/team/x:1", amd64, ann); err != nil {
				t.Errorf("insecure %v, status %d: %v", insecure, code, err)
			}
			wantRequests(t, mirror, "GET /hub/v2/", "GET /hub/v2/team/x/manifests/1")
		}
	}
}

// TestPasswordAtPath: a password that a mirror at a path refuses is tried at that path, not at another application.
func TestPasswordAtPath(t *testing.T) {
	mirror := listen(t, "127.0.0.1:0", "mirror.test", false, behindPassword(nil))
	entry := mirrors.Entry{Source: "docker.io", Mirrors: []string{mirror.host}, Forms: map[string]mirrors.Form{mirror.host: {Path: "/hub/v2"}}, Tags: true, Only: true}
	w := newWorld(t, func(c *Config) { c.Mirrors = []mirrors.Entry{entry} })
	_, err := w.Resolve(t.Context(), "docker.io/team/x:1", amd64, []authn.Keychain{login(mirror.host, "bob", "wrong")})
	wantError(t, err, v1alpha1.ReasonUnauthorized)
	wantRequests(t, mirror, "GET /hub/v2/", "GET /hub/v2/team/x/manifests/1", "GET /hub/v2/")
}

package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
)

// This test binary is a credential provider if this variable names a folder: it appends its
// request to the file "requests" there, and answers with the file "answer".
const providerVariable = "LAYER_RESOLVER_TEST_PROVIDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(providerVariable); dir != "" {
		if err := provide(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func provide(dir string) error {
	var request object
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "requests"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	fmt.Fprintf(file, "%s %s %s %s\n", request["apiVersion"], request["kind"], request["image"], strings.Join(os.Args[1:], " "))
	answer, err := os.ReadFile(filepath.Join(dir, "answer"))
	if err == nil {
		_, err = os.Stdout.Write(answer)
	}
	return err
}

// testProvider is a provider plugin, and what it was asked.
type testProvider struct {
	t   *testing.T
	dir string
}

func newTestProvider(t *testing.T) *testProvider {
	t.Helper()
	p := &testProvider{t, t.TempDir()}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(own, filepath.Join(p.dir, "cloud")); err != nil {
		t.Fatal(err)
	}
	return p
}

// config writes a configuration with the provider for some images.
func (p *testProvider) config(images ...string) string {
	text, err := json.Marshal(object{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
		"providers": []object{{
			"name": "cloud", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": images,
			"defaultCacheDuration": "10m", "args": []string{"get"}, "env": []object{{"name": providerVariable, "value": p.dir}},
		}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return writeFile(p.t, filepath.Join(p.dir, "config.yaml"), text)
}

// answers makes the provider answer with a password of the user ann for an image pattern.
func (p *testProvider) answers(image, password, cacheKey, lasts string) {
	answer := object{
		"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": cacheKey,
		"auth": object{image: object{"username": "ann", "password": password}},
	}
	if lasts != "" {
		answer["cacheDuration"] = lasts
	}
	text, err := json.Marshal(answer)
	if err != nil {
		p.t.Fatal(err)
	}
	writeFile(p.t, filepath.Join(p.dir, "answer"), text)
}

// asked returns what the provider was asked since the last call.
func (p *testProvider) asked() []string {
	path := filepath.Join(p.dir, "requests")
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	if err := os.Remove(path); err != nil {
		p.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

func (p *testProvider) keychain(images ...string) *provider {
	p.t.Helper()
	keychains, err := KeychainsFromProviders(p.config(images...), p.dir)
	if err != nil || len(keychains) != 1 {
		p.t.Fatalf("%d keychains, error %v", len(keychains), err)
	}
	keychain := keychains[0].(*provider)
	keychain.setClock(testingclock.NewFakePassiveClock(time.Now()))
	return keychain
}

// changing wants a password that changes.
type changing struct {
	next     http.Handler
	mu       sync.Mutex
	password string
}

func (c *changing) set(password string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.password = password
}

func (c *changing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	want := c.password
	c.mu.Unlock()
	if user, given, ok := r.BasicAuth(); !ok || user != "ann" || given != want {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	c.next.ServeHTTP(w, r)
}

// TestCredentialProvider: a plugin of the kubelet has the credentials of a registry. It is
// run once for as long as its answer lasts, and again when that has expired, or when the
// registry no longer takes it.
func TestCredentialProvider(t *testing.T) {
	registry := &changing{next: oneImage(), password: "first"}
	s := listen(t, "127.0.0.1:0", "registry.test", false, registry)
	p := newTestProvider(t)
	p.answers(s.host, "first", "Registry", "12h")
	keychain := p.keychain("*.test:"+fmt.Sprint(s.port()), "*.dkr.ecr.*.amazonaws.com")
	clock := testingclock.NewFakePassiveClock(time.Now())
	keychain.setClock(clock)
	w := newWorld(t)
	resolve := func() error {
		found, err := w.Resolve(t.Context(), s.host+"/app:1", amd64, []authn.Keychain{keychain})
		if err == nil && found.By != authn.Keychain(keychain) {
			t.Errorf("opened by %v", found.By)
		}
		return err
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := resolve(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	want := "credentialprovider.kubelet.k8s.io/v1 CredentialProviderRequest " + s.host + "/app get"
	if got := p.asked(); len(got) != 1 || got[0] != want {
		t.Errorf("asked %q, want once %q", got, want)
	}

	// The credential expires.
	p.answers(s.host, "second", "Registry", "12h")
	registry.set("second")
	clock.SetTime(clock.Now().Add(12*time.Hour + time.Second))
	if err := resolve(); err != nil {
		t.Error(err)
	}
	if got := p.asked(); len(got) != 1 {
		t.Errorf("asked %q, want once again", got)
	}

	// The registry no longer takes it, long before it expires.
	p.answers(s.host, "third", "Registry", "12h")
	registry.set("third")
	wantError(t, resolve(), v1alpha1.ReasonUnauthorized)
	wantError(t, resolve(), v1alpha1.ReasonUnauthorized)
	if got := p.asked(); len(got) > 0 {
		t.Errorf("asked %q at once: whoever names images that are refused could have it run all the time", got)
	}
	clock.SetTime(clock.Now().Add(providerRefused))
	if err := resolve(); err != nil {
		t.Errorf("with the credential that the provider has by now: %v", err)
	}
	if got := p.asked(); len(got) != 1 {
		t.Errorf("asked %q, want once again", got)
	}

	// Nor does the provider have another one.
	registry.set("fourth")
	clock.SetTime(clock.Now().Add(providerRefused))
	wantError(t, resolve(), v1alpha1.ReasonUnauthorized)
	if got := p.asked(); len(got) != 1 {
		t.Errorf("asked %q, want once again", got)
	}

	// Other registries are not its business, and a registry does not see another's.
	other := listen(t, "127.0.0.1:0", "other.test", false, oneImage())
	if _, err := w.Resolve(t.Context(), other.host+"/app:1", amd64, []authn.Keychain{keychain}); err != nil || len(p.asked()) > 0 || other.saw("third") {
		t.Errorf("error %v, or another registry was asked for", err)
	}
}

// TestCredentialProviderCache: answers are remembered for what they say they are for.
func TestCredentialProviderCache(t *testing.T) {
	for _, c := range []struct {
		key, lasts string
		images     []string
		runs       int
	}{
		{"Image", "1h", []string{"a.test/x", "a.test/x", "a.test/y"}, 2},
		{"Registry", "1h", []string{"a.test/x", "a.test/y", "b.test/x"}, 2},
		{"Global", "1h", []string{"a.test/x", "a.test/y", "b.test/x"}, 1},
		{"Registry", "0s", []string{"a.test/x", "a.test/x"}, 2},
		{"Registry", "", []string{"a.test/x", "a.test/y"}, 1},
	} {
		p := newTestProvider(t)
		p.answers("*.test", "s3cret", c.key, c.lasts)
		keychain := p.keychain("*.test")
		for _, image := range c.images {
			domain, repository, _ := strings.Cut(image, "/")
			config, err := lookUp(t.Context(), keychain, resource{domain, repository})
			if err != nil || config.Password != "s3cret" {
				t.Errorf("%+v: %s: %v, error %v", c, image, config, err)
			}
		}
		if got := p.asked(); len(got) != c.runs {
			t.Errorf("%+v: asked %q", c, got)
		}
	}
}

// TestCredentialProviderDefault: an answer that does not say how long it lasts lasts as long as
// the configuration says.
func TestCredentialProviderDefault(t *testing.T) {
	p := newTestProvider(t)
	p.answers("*.test", "s3cret", "Registry", "")
	keychain := p.keychain("*.test")
	clock := testingclock.NewFakePassiveClock(time.Now())
	keychain.setClock(clock)
	for _, step := range []struct {
		passes time.Duration
		runs   int
	}{{0, 1}, {9 * time.Minute, 0}, {2 * time.Minute, 1}} {
		clock.SetTime(clock.Now().Add(step.passes))
		if _, err := lookUp(t.Context(), keychain, resource{"a.test", "x"}); err != nil {
			t.Error(err)
		}
		if got := p.asked(); len(got) != step.runs {
			t.Errorf("%v later: asked %q", step.passes, got)
		}
	}
}

// TestCredentialProviderFailsForOne: a failure for an image takes nothing from others of its
// registry that have an answer, and the provider is not run for each of the rest.
func TestCredentialProviderFailsForOne(t *testing.T) {
	p := newTestProvider(t)
	p.answers("*.test", "s3cret", "Image", "1h")
	keychain := p.keychain("*.test")
	get := func(repository string) error {
		_, err := lookUp(t.Context(), keychain, resource{"a.test", repository})
		return err
	}
	if err := get("good"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(p.dir, "answer"), []byte("no JSON"))
	for range 20 {
		if get("bad") == nil || get("bad-too") == nil {
			t.Error("there is an answer for an image without one")
		}
		if err := get("good"); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.asked(); len(got) != 2 {
		t.Errorf("asked %q", got)
	}
}

// TestCredentialProviderKnowsNothing: what was never answered, or with a failure, is not
// forgotten when a registry refuses.
func TestCredentialProviderKnowsNothing(t *testing.T) {
	p := newTestProvider(t)
	keychain := p.keychain("*.test")
	target := resource{"a.test", "x"}
	if keychain.refused(target) {
		t.Error("there is nothing to forget before the first answer")
	}
	if _, err := lookUp(t.Context(), keychain, target); err == nil {
		t.Fatal("a provider without an answer has one")
	}
	if keychain.refused(target) {
		t.Error("a failure is asked for again at once")
	}
}

// noCredentials is a valid answer of a provider.
const noCredentials = `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Global"}`

// TestCredentialProviderFails: whatever a plugin does, its registry is asked without it, and
// what it says is not shown.
func TestCredentialProviderFails(t *testing.T) {
	for name, answer := range map[string]string{
		"no answer": "", "no JSON": "s3cret", "another version": `{"apiVersion":"v9","kind":"CredentialProviderResponse","cacheKeyType":"Global"}`,
		"no cache key": `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse"}`,
		"too long":     strings.Repeat(" ", maxProviderAnswer+1-len(noCredentials)) + noCredentials,
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestProvider(t)
			if answer != "" {
				writeFile(t, filepath.Join(p.dir, "answer"), []byte(answer))
			}
			keychain := p.keychain("*.test")
			for range 3 {
				_, err := lookUp(t.Context(), keychain, resource{"registry.test", "app"})
				if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "credential provider cloud") {
					t.Errorf("error %v", err)
				}
			}
			if got := p.asked(); len(got) != 1 {
				t.Errorf("asked %d times in a row", len(got))
			}
		})
	}
}

// TestCredentialProviderAnswersAtLength: as much as may be read is read.
func TestCredentialProviderAnswersAtLength(t *testing.T) {
	p := newTestProvider(t)
	writeFile(t, filepath.Join(p.dir, "answer"), []byte(strings.Repeat(" ", maxProviderAnswer-len(noCredentials))+noCredentials))
	if _, err := lookUp(t.Context(), p.keychain("*.test"), resource{"registry.test", "app"}); err != nil {
		t.Error(err)
	}
}

// TestCredentialProviderConfig: what cannot be used is an error at the start.
func TestCredentialProviderConfig(t *testing.T) {
	p := newTestProvider(t)
	good, err := os.ReadFile(p.config("*.test"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(p.dir, "text"), nil)
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{"kubelet.config.k8s.io/v1\"", "kubelet.config.k8s.io/v9\"", "kubelet.config.k8s.io/v9"},
		{"matchImages", "matches", "matches"},
		{`["*.test"]`, "[]", "matchImages is empty"},
		{`"cloud"`, `"../cloud"`, "that of no program"},
		{`"cloud"`, `"text"`, "is no program"},
		{`"cloud"`, `"gone"`, "no such file"},
		{"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1", "v1beta1"},
		{`"defaultCacheDuration":"10m",`, "", "defaultCacheDuration"},
		{`"args"`, `"tokenAttributes":{"serviceAccountTokenAudience":"a","cacheType":"Token","requireServiceAccount":true},"args"`, "tokenAttributes"},
		{`"providers":[`, `"providers":[],"x":[`, `"x"`},
		{`"defaultCacheDuration":"10m"`, `"defaultCacheDuration":"0s"`, ""}, // nothing is kept
		{`"defaultCacheDuration":"10m"`, `"defaultCacheDuration":"-1s"`, "defaultCacheDuration"},
	} {
		text := strings.Replace(string(good), c.old, c.new, 1)
		_, err := KeychainsFromProviders(writeFile(t, filepath.Join(p.dir, "changed"), []byte(text)), p.dir)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: error %v, want %q", c.new, c.old, err, c.want)
		}
	}
	_, one, _ := strings.Cut(string(good), `"providers":[`)
	one = one[:strings.LastIndex(one, "]")]
	twice := strings.Replace(string(good), one, one+","+one, 1)
	if _, err := KeychainsFromProviders(writeFile(t, filepath.Join(p.dir, "changed"), []byte(twice)), p.dir); err == nil || !strings.Contains(err.Error(), `"cloud": is there twice`) {
		t.Errorf("twice: error %v", err)
	}
}

package keychains

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	testingclock "k8s.io/utils/clock/testing"
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
	var request map[string]any
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

func writeFile(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
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
	text, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
		"providers": []map[string]any{{
			"name": "cloud", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": images,
			"defaultCacheDuration": "10m", "args": []string{"get"}, "env": []map[string]any{{"name": providerVariable, "value": p.dir}},
		}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return writeFile(p.t, filepath.Join(p.dir, "config.yaml"), text)
}

// answers makes the provider answer with a password of the user ann for an image pattern.
func (p *testProvider) answers(image, password, cacheKey, lasts string) {
	answer := map[string]any{
		"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": cacheKey,
		"auth": map[string]any{image: map[string]any{"username": "ann", "password": password}},
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
	keychains, err := FromProviders(p.config(images...), p.dir)
	if err != nil || len(keychains) != 1 {
		p.t.Fatalf("%d keychains, error %v", len(keychains), err)
	}
	keychain := keychains[0].(*provider)
	keychain.setClock(testingclock.NewFakePassiveClock(time.Now()))
	return keychain
}

// get returns the credential of a keychain for an image without its tag.
func get(ctx context.Context, keychain authn.Keychain, image string) (*authn.AuthConfig, error) {
	named := must(name.NewRepository(image))
	return lookUp(ctx, keychain, resource{named.RegistryStr(), named.RepositoryStr()})
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// TestCredentialProvider: a plugin of the kubelet has the credentials of a registry. It is run once for as long as its
// answer lasts, again when that has expired, and again for a credential that the registry refuses, but not each time.
func TestCredentialProvider(t *testing.T) {
	p := newTestProvider(t)
	keychain := p.keychain("*.test:5000", "*.dkr.ecr.*.amazonaws.com")
	clock := testingclock.NewFakePassiveClock(time.Now())
	keychain.setClock(clock)
	const image = "registry.test:5000/app"
	wantRun := func(password string, run bool) {
		t.Helper()
		config, err := get(t.Context(), keychain, image)
		if err != nil || config.Username != "ann" || config.Password != password {
			t.Errorf("%v, error %v, want the password %s", config, err, password)
		}
		want := "credentialprovider.kubelet.k8s.io/v1 CredentialProviderRequest " + image + " get"
		if got := p.asked(); run && (len(got) != 1 || got[0] != want) || !run && len(got) > 0 {
			t.Errorf("asked %q, want it run: %v, with %q", got, run, want)
		}
	}
	p.answers("registry.test:5000", "first", "Registry", "12h")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := get(t.Context(), keychain, image); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := p.asked(); len(got) != 1 {
		t.Errorf("eight at a time: asked %q, want once", got)
	}
	wantRun("first", false)

	p.answers("registry.test:5000", "second", "Registry", "12h")
	clock.SetTime(clock.Now().Add(12*time.Hour + time.Second))
	wantRun("second", true)

	// The registry refuses it, long before it expires.
	p.answers("registry.test:5000", "third", "Registry", "12h")
	target := must(name.NewRepository(image))
	if keychain.Refused(target) {
		t.Error("forgotten at once: whoever names images that are refused could have the provider run all the time")
	}
	wantRun("second", false)
	clock.SetTime(clock.Now().Add(providerRefused))
	if !keychain.Refused(target) {
		t.Error("a refused credential is kept")
	}
	wantRun("third", true)

	// For other registries it is not run.
	if authenticator, err := authn.Resolve(t.Context(), keychain, must(name.NewRepository("other.test/app"))); err != nil || authenticator != authn.Anonymous || len(p.asked()) > 0 {
		t.Errorf("another registry: %v, error %v", authenticator, err)
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
			config, err := get(t.Context(), keychain, image)
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
		if _, err := get(t.Context(), keychain, "a.test/x"); err != nil {
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
	try := func(repository string) error {
		_, err := get(t.Context(), keychain, "a.test/"+repository)
		return err
	}
	if err := try("good"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(p.dir, "answer"), []byte("no JSON"))
	for range 20 {
		if try("bad") == nil || try("bad-too") == nil {
			t.Error("there is an answer for an image without one")
		}
		if err := try("good"); err != nil {
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
	target := must(name.NewRepository("a.test/x"))
	if keychain.Refused(target) {
		t.Error("there is nothing to forget before the first answer")
	}
	if _, err := get(t.Context(), keychain, target.String()); err == nil {
		t.Fatal("a provider without an answer has one")
	}
	if keychain.Refused(target) {
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
				_, err := get(t.Context(), keychain, "registry.test/app")
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
	if _, err := get(t.Context(), p.keychain("*.test"), "registry.test/app"); err != nil {
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
		{`"cloud"`, `"../cloud"`, "that of a program"},
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
		_, err := FromProviders(writeFile(t, filepath.Join(p.dir, "changed"), []byte(text)), p.dir)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: error %v, want %q", c.new, c.old, err, c.want)
		}
	}
	_, one, _ := strings.Cut(string(good), `"providers":[`)
	one = one[:strings.LastIndex(one, "]")]
	twice := strings.Replace(string(good), one, one+","+one, 1)
	if _, err := FromProviders(writeFile(t, filepath.Join(p.dir, "changed"), []byte(twice)), p.dir); err == nil || !strings.Contains(err.Error(), `"cloud": is configured twice`) {
		t.Errorf("twice: error %v", err)
	}
}

package keychains

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubelet/config/v1"
	kubeletprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"
)

const (
	// maxProviderTime bounds one run of a credential provider, as in the kubelet.
	maxProviderTime = time.Minute
	// maxProviderAnswer bounds what is read of its answer, and maxProviderLog of what it writes
	// besides (bytes).
	maxProviderAnswer = 1 << 20
	maxProviderLog    = 1 << 10
	// providerFailed is how long a provider is not run again for a registry after it failed.
	providerFailed = 30 * time.Second
	// providerRefused is how old a credential has to be before a refusal makes its provider
	// run again.
	providerRefused = time.Minute
	// maxProviderRuns bounds the runs of a provider at the same time.
	maxProviderRuns = 2
	// maxProvided bounds the credentials that are remembered.
	maxProvided = 1024
)

// FromProviders returns a keychain for each of the kubelet's credential provider
// plugins in a CredentialProviderConfig (kubelet.config.k8s.io/v1). The programs are in a
// folder, and answer credentialprovider.kubelet.k8s.io/v1. An error names what cannot be
// used.
func FromProviders(config, folder string) ([]authn.Keychain, error) {
	content, err := ReadAtMost(config, maxDockerConfig)
	if err != nil {
		return nil, err
	}
	var parsed kubeletconfig.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(content, &parsed); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	if got := parsed.APIVersion + " " + parsed.Kind; got != kubeletconfig.SchemeGroupVersion.String()+" CredentialProviderConfig" {
		return nil, fmt.Errorf("%s: is %q, not %s CredentialProviderConfig", config, got, kubeletconfig.SchemeGroupVersion)
	}
	if len(parsed.Providers) == 0 {
		return nil, fmt.Errorf("%s: no providers", config)
	}
	keychains := make([]authn.Keychain, len(parsed.Providers))
	names := map[string]bool{}
	for i := range parsed.Providers {
		p, err := newProvider(&parsed.Providers[i], folder)
		if err == nil && names[p.config.Name] {
			err = errors.New("is configured twice")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: credential provider %q: %w", config, parsed.Providers[i].Name, err)
		}
		names[p.config.Name] = true
		keychains[i] = p
	}
	return keychains, nil
}

// provider is a credential provider plugin.
type provider struct {
	config  *kubeletconfig.CredentialProvider
	path    string
	clock   cache.Clock
	known   *cache.LRUExpireCache // string: *provided
	flights singleflight.Group
	// runs has a place for each run at a time: plugins take tens of megabytes.
	runs chan struct{}
}

// provided is an answer of a provider, or why there is none.
type provided struct {
	authn.Keychain
	err error
	at  time.Time
}

func newProvider(config *kubeletconfig.CredentialProvider, folder string) (*provider, error) {
	version := kubeletprovider.SchemeGroupVersion.String()
	switch name := config.Name; {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, `/\ `):
		return nil, errors.New("its name cannot be that of a program")
	case config.APIVersion != version:
		return nil, fmt.Errorf("apiVersion %q, only %s is supported", config.APIVersion, version)
	case config.TokenAttributes != nil:
		return nil, errors.New("has tokenAttributes: it needs tokens of pods, which the resolver does not have. Remove it; pull secrets can take its place")
	case config.DefaultCacheDuration == nil || config.DefaultCacheDuration.Duration < 0:
		return nil, errors.New("defaultCacheDuration is missing or negative")
	case len(config.MatchImages) == 0:
		return nil, errors.New("matchImages is empty")
	}
	p := &provider{config: config, path: filepath.Join(folder, config.Name), runs: make(chan struct{}, maxProviderRuns)}
	info, err := os.Stat(p.path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("%s is no program", p.path)
	}
	for _, pattern := range config.MatchImages {
		if _, err := credentialprovider.ParseSchemelessURL(pattern); err != nil {
			return nil, fmt.Errorf("matchImages: %w", err)
		}
	}
	p.setClock(clock.RealClock{})
	return p, nil
}

func (p *provider) setClock(clock cache.Clock) {
	p.clock, p.known = clock, cache.NewLRUExpireCacheWithClock(maxProvided, clock)
}

// Resolve implements authn.Keychain.
func (p *provider) Resolve(target authn.Resource) (authn.Authenticator, error) {
	return p.ResolveContext(context.Background(), target)
}

// ResolveContext implements authn.ContextKeychain.
func (p *provider) ResolveContext(ctx context.Context, target authn.Resource) (authn.Authenticator, error) {
	if !matches(p.config.MatchImages, target) {
		return authn.Anonymous, nil
	}
	known := p.remembered(target)
	if known == nil {
		// If the caller stops waiting, the run goes on: it has its own time limit, and others wait for it.
		result := p.flights.DoChan(target.String(), func() (any, error) {
			p.runs <- struct{}{}
			defer func() { <-p.runs }()
			if known := p.remembered(target); known != nil { // somebody else may have asked since
				return known, nil
			}
			return p.ask(context.WithoutCancel(ctx), target), nil
		})
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case r := <-result:
			known = r.Val.(*provided)
		}
	}
	if known.err != nil {
		return nil, known.err
	}
	return known.Resolve(target)
}

// keys returns under which keys an answer for an image may be remembered, by the type that
// the answer states.
func keys(target authn.Resource) map[kubeletprovider.PluginCacheKeyType]string {
	return map[kubeletprovider.PluginCacheKeyType]string{
		kubeletprovider.ImagePluginCacheKeyType:    "image " + target.String(),
		kubeletprovider.RegistryPluginCacheKeyType: "registry " + target.RegistryStr(),
		kubeletprovider.GlobalPluginCacheKeyType:   "global",
	}
}

// failedKey is under which key it is remembered that the provider failed.
func failedKey(target authn.Resource) string { return "failed " + target.RegistryStr() }

// remembered returns the answer for an image; failing that, that the provider failed for its
// registry: a failure for one image takes nothing from those that have an answer.
func (p *provider) remembered(target authn.Resource) *provided {
	of := keys(target)
	for _, key := range []string{
		of[kubeletprovider.ImagePluginCacheKeyType], of[kubeletprovider.RegistryPluginCacheKeyType],
		of[kubeletprovider.GlobalPluginCacheKeyType], failedKey(target),
	} {
		if known, ok := p.known.Get(key); ok {
			return known.(*provided)
		}
	}
	return nil
}

// Refused notes that a registry refuses the credential for an image: it may have been valid for a shorter time
// than its provider stated. It reports whether the credential was old enough to ask the provider again.
func (p *provider) Refused(target authn.Resource) (forgotten bool) {
	known := p.remembered(target)
	if known == nil || known.err != nil || p.clock.Now().Sub(known.at) < providerRefused {
		return false
	}
	for _, key := range keys(target) {
		p.known.Remove(key)
	}
	return true
}

// ask runs the provider, and remembers its answer for as long as that states.
func (p *provider) ask(ctx context.Context, target authn.Resource) *provided {
	answer, err := p.run(ctx, target.String())
	found := &provided{at: p.clock.Now()}
	key, lasts := "", providerFailed
	if err == nil {
		var ok bool
		if key, ok = keys(target)[answer.CacheKeyType]; !ok {
			err = fmt.Errorf("cacheKeyType %q", answer.CacheKeyType)
		}
	}
	if err == nil {
		config := credentialprovider.DockerConfig{}
		for pattern, auth := range answer.Auth {
			config[pattern] = credentialprovider.DockerConfigEntry{Username: auth.Username, Password: auth.Password}
		}
		keyring := &Keyring{}
		keyring.BasicDockerKeyring.Add(nil, config)
		found.Keychain = keyring
		lasts = p.config.DefaultCacheDuration.Duration
		if answer.CacheDuration != nil {
			lasts = answer.CacheDuration.Duration
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot run a credential provider", "provider", p.config.Name, "image", target.String())
		// What the provider writes is for the log only: it may quote a credential.
		found.err = fmt.Errorf("credential provider %s returned no credentials: the log has the reason", p.config.Name)
		key, lasts = failedKey(target), providerFailed
	}
	if lasts > 0 {
		p.known.Add(key, found, lasts)
	}
	return found
}

// run asks the provider for the credentials of an image.
func (p *provider) run(ctx context.Context, image string) (*kubeletprovider.CredentialProviderResponse, error) {
	request := kubeletprovider.CredentialProviderRequest{Image: image}
	request.APIVersion, request.Kind = p.config.APIVersion, "CredentialProviderRequest"
	input, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxProviderTime)
	defer cancel()
	stdout, stderr := &limitedBuffer{left: maxProviderAnswer}, &limitedBuffer{left: maxProviderLog, drop: true}
	cmd := exec.CommandContext(ctx, p.path, p.config.Args...)
	cmd.WaitDelay = time.Second // if something that it started keeps its output open
	// The resolver's own memory limit is not the plugin's.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "GOMEMLIMIT=") })
	for _, variable := range p.config.Env {
		cmd.Env = append(cmd.Env, variable.Name+"="+variable.Value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), stdout, stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", cmp.Or(ctx.Err(), err), strings.TrimSpace(stderr.taken.String()))
	}
	var response kubeletprovider.CredentialProviderResponse
	if err := json.Unmarshal(stdout.taken.Bytes(), &response); err != nil {
		return nil, errors.New("its answer is no JSON object") // which may have a credential
	}
	if response.APIVersion != request.APIVersion || response.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("it answers with %.100q %.100q", response.APIVersion, response.Kind)
	}
	return &response, nil
}

// limitedBuffer takes a number of bytes. More is an error, or dropped. The buffer is not
// embedded: io.Copy would fill it by its ReadFrom, without a limit.
type limitedBuffer struct {
	taken bytes.Buffer
	left  int
	drop  bool
}

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.taken.Write(p[:n])
	if n < len(p) && !b.drop {
		return n, io.ErrShortWrite
	}
	return len(p), nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/pflag"

	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// concurrency of questions at the shell. The client keeps to its own rate for
// each registry.
const concurrency = 16

// registryOptions are the flags of the commands that ask registries for a user.
type registryOptions struct {
	registriesConf, dockerConfig string
	timeout                      time.Duration
}

func (o *registryOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.registriesConf, "registries-conf", "", "containers-registries.conf(5) `file` with mirrors, locations and short names; without, short names are of docker.io")
	flags.StringVar(&o.dockerConfig, "docker-config", "", "docker configuration `file` with credentials (default: that of the user, as docker and podman find it)")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "time for one request")
}

// asker asks registries what images are.
type asker struct {
	client    *registry.Client
	keychains []authn.Keychain
}

func (o *registryOptions) asker() (*asker, error) {
	// At the shell it is the user who names the registry, with the user's network
	// and credentials; in a cluster it is whoever may create a pod.
	anywhere, err := policy.New(policy.Config{
		Registries: []string{"*"},
		Networks:   []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
	})
	if err != nil {
		return nil, err
	}
	client, err := registry.New(registry.Config{
		Policy: anywhere, RegistriesConf: o.registriesConf, Timeout: o.timeout, UserAgent: "layer-resolver",
	})
	if err != nil {
		return nil, err
	}
	var keychain authn.Keychain = authn.DefaultKeychain
	if o.dockerConfig != "" {
		if keychain, err = registry.KeychainFromDockerConfig(o.dockerConfig); err != nil {
			return nil, err
		}
	}
	return &asker{client: client, keychains: []authn.Keychain{keychain}}, nil
}

// resolve asks for the references that an image may mean, in that order, until
// one is resolved, and returns that one.
func (a *asker) resolve(ctx context.Context, references, platforms []string) (reference string, resolution *registry.Resolution, err error) {
	var errs []error
	for _, reference := range references {
		resolution, err := a.client.Resolve(ctx, reference, platforms, a.keychains)
		if err == nil {
			return reference, resolution, nil
		}
		errs = append(errs, err)
	}
	return "", nil, errors.Join(errs...)
}

// defaultPlatform is that of this machine, in containers: Linux.
const defaultPlatform = "linux/" + runtime.GOARCH

// checkPlatform returns an error if the text is no platform of a node.
func checkPlatform(platform string) error {
	os, architecture, ok := strings.Cut(platform, "/")
	if !ok || os == "" || architecture == "" || strings.Contains(architecture, "/") {
		return fmt.Errorf("platform %q: expected os/architecture as nodes have it, such as linux/arm64", platform)
	}
	return nil
}

// runsOn tells whether a manifest is one for nodes of a platform. One without a
// platform came without an index; container runtimes take it as it is.
func runsOn(manifest, platform string) bool {
	return manifest == "" || manifest == platform || strings.HasPrefix(manifest, platform+"/")
}

package inspect

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

	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/policy"
	"github.com/layer-locality/layer-locality/resolver/registry"
)

// Concurrency is how many images a command looks up at a time. Besides, the
// Client limits its request rate for each registry.
const Concurrency = 16

// Options define how registries are asked.
type Options struct {
	// RegistriesConf is a containers-registries.conf(5) file with mirrors,
	// locations and short names. Without it, short names refer to docker.io.
	RegistriesConf string
	// DockerConfig is a docker configuration file with credentials. Without it,
	// the user's credentials are used, as docker and podman find them.
	DockerConfig string
	// Timeout of one request; 0 means 10 seconds.
	Timeout time.Duration
	// UserAgent is the User-Agent header of requests.
	UserAgent string
}

// AddFlags adds the flags of the commands that ask registries on behalf of a
// user.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.RegistriesConf, "registries-conf", "", "containers-registries.conf(5) `file` with mirrors, locations and short names; without, short names are of docker.io")
	flags.StringVar(&o.DockerConfig, "docker-config", "", "docker configuration `file` with credentials (default: that of the user, as docker and podman find it)")
	flags.DurationVar(&o.Timeout, "timeout", 10*time.Second, "time for one request")
}

// Client asks registries for the manifests of images.
type Client struct {
	registries *registry.Client
	keychains  []authn.Keychain
}

// NewClient returns a Client that may ask any registry at any address. It fails if
// a file of the options cannot be read.
func NewClient(o Options) (*Client, error) {
	// At the shell, the user names the registry, and the user's network and
	// credentials are used. In a cluster, anybody who may create a pod names it.
	// So no address is forbidden here.
	anywhere, err := policy.New(policy.Config{
		Registries: []string{"*"},
		Networks:   []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
	})
	if err != nil {
		return nil, err
	}
	client, err := registry.New(registry.Config{
		Policy: anywhere, RegistriesConf: o.RegistriesConf, Timeout: o.Timeout, UserAgent: o.UserAgent,
	})
	if err != nil {
		return nil, err
	}
	var keychain authn.Keychain = authn.DefaultKeychain
	if o.DockerConfig != "" {
		if keychain, err = keychains.FromDockerConfig(o.DockerConfig); err != nil {
			return nil, err
		}
	}
	return &Client{registries: client, keychains: []authn.Keychain{keychain}}, nil
}

// References returns the full references that an image name, as in a pod, may
// mean, in the order in which they are tried. It fails if the name is invalid.
func (c *Client) References(image string) ([]string, error) { return c.registries.References(image) }

// Resolve asks for the references that an image may mean, in that order, until
// one is resolved. It returns that reference with its manifests for the
// platforms. If none is resolved, it returns the errors of all references
// (*registry.Error).
func (c *Client) Resolve(ctx context.Context, references, platforms []string) (reference string, resolution *registry.Resolution, err error) {
	var errs []error
	for _, reference := range references {
		resolution, err := c.registries.Resolve(ctx, reference, platforms, c.keychains)
		if err == nil {
			return reference, resolution, nil
		}
		errs = append(errs, detailed{err})
	}
	return "", nil, errors.Join(errs...)
}

// detailed is an error with the text for those who operate a resolver: the credentials are the user's own.
type detailed struct{ error }

func (d detailed) Error() string { return registry.Details(d.error) }
func (d detailed) Unwrap() error { return d.error }

// DefaultPlatform is the platform of containers on this machine: always Linux.
const DefaultPlatform = "linux/" + runtime.GOARCH

// CheckPlatform returns an error if the text is not a valid platform of a node.
func CheckPlatform(platform string) error {
	os, architecture, ok := strings.Cut(platform, "/")
	if !ok || os == "" || architecture == "" || strings.Contains(architecture, "/") {
		return fmt.Errorf("platform %q: expected os/architecture as nodes have it, such as linux/arm64", platform)
	}
	return nil
}

// RunsOn reports whether a manifest is for nodes of a platform. manifest is the
// manifest's platform, which may have a variant. A manifest without a platform
// came without an index; container runtimes accept it as it is.
func RunsOn(manifest, node string) bool {
	return manifest == "" || manifest == node || strings.HasPrefix(manifest, node+"/")
}

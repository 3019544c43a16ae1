// Package registry asks registries what images consist of: manifests only, never
// layers nor configurations. Nothing in a reference, a credential's scope or an
// answer is trusted.
package registry

import (
	"context"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// Config of a Client.
type Config struct {
	// Policy that says which registries may be asked and which addresses
	// contacted. Required.
	Policy *policy.Policy
	// RegistriesConf is the path of a containers-registries.conf(5) file, "" for
	// none. Its mirrors and locations count as listed by the administrator, as
	// names of registries, not as networks. Drop-ins are read from the directory
	// of the same name with ".d".
	RegistriesConf string
	// RequestsPerSecond and Burst for each contacted host; 0: 20 and 40.
	RequestsPerSecond float64
	Burst             int
	// Timeout of one request with its redirects and the answer; 0: 10 seconds.
	Timeout time.Duration
	// Registerer of the client's metrics; nil: none.
	Registerer prometheus.Registerer
	// UserAgent of all requests.
	UserAgent string
}

// Client asks registries. It is safe for concurrent use.
type Client struct {
	config Config
}

// Resolution is what a reference stands for.
type Resolution struct {
	// Digest that the registry has for the reference: of an index or of the
	// manifest itself.
	Digest string
	// Index tells that Digest is an index.
	Index bool
	// Manifests, one for each platform found, without duplicates. Platform is
	// empty if there is no index.
	Manifests []v1alpha1.ImageManifestSpec
}

// New returns a Client, or an error that says what of the configuration cannot
// be used.
func New(config Config) (*Client, error) {
	return &Client{config: config}, nil
}

// References returns the full names that an image in a pod may mean.
func (c *Client) References(image string) ([]string, error) { panic("in work") }

// Resolve asks what a reference consists of.
func (c *Client) Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*Resolution, error) {
	panic("in work")
}

// Digest asks which digest a tag has.
func (c *Client) Digest(ctx context.Context, reference string, keychains []authn.Keychain) (string, error) {
	panic("in work")
}

// KeychainFromDockerConfig returns the credentials of a docker config file.
func KeychainFromDockerConfig(path string) (authn.Keychain, error) { panic("in work") }

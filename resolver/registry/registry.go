// Package registry asks registries for the layers of images. It requests
// manifests only, never layers or configurations.
//
// Nothing in a reference or in an answer is trusted. Addresses are checked when
// they are contacted, those of redirects and token servers too. Answers are
// bounded and verified. A credential goes only to the registry it is for and to
// the token server that this registry names. Proxies of the environment are not
// used: a proxy looks names up itself, and no address can be checked. The
// administrator can name one for single hosts. Certificates are verified against
// the system's and those that the administrator adds.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/mirrors"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

// Config of a Client.
type Config struct {
	// Policy has which registries may be asked and which addresses may be
	// contacted. Required.
	Policy *policy.Policy
	// RegistriesConf is the path of a containers-registries.conf(5) file, "" for
	// none; drop-ins are read from the directory of the same name with ".d". Its
	// mirrors and locations may be asked without being listed in the policy; their
	// addresses are checked like all others. It is read once.
	RegistriesConf string
	// Mirrors are those of nodes' other configurations. They may be asked like those of RegistriesConf, whose rule
	// counts if it is for a longer part of the name.
	Mirrors []mirrors.Entry
	// CABundles are files with certificates of authorities (PEM), which are trusted
	// besides the system's. They are read again when they change.
	CABundles []string
	// CertsDir is a folder as described in containers-certs.d(5), with a folder for
	// each host or host:port: *.crt are authorities, *.cert and *.key client
	// certificates. It is read again when it changes. "" for none.
	CertsDir string
	// Proxies by host or host:port that are asked through them. A proxy looks up
	// names itself, so that the addresses of these hosts are not checked. A host to
	// which a registry sends requests is asked through a proxy only if it is named
	// here, too.
	Proxies map[string]*url.URL
	// RequestsPerSecond and Burst for each contacted host; 0: DefaultRequestsPerSecond and 40.
	RequestsPerSecond float64
	Burst             int
	// Timeout of one request with its redirects and its answer; 0: DefaultTimeout.
	// Waiting for the rate of requests does not count.
	Timeout time.Duration
	// QuotaForNodes is the share of a registry's quota (RateLimit-Limit) below which
	// manifests are no longer requested: 0 uses all of it; nil: half.
	QuotaForNodes *float64
	// Registerer of the client's metrics; nil: none.
	Registerer prometheus.Registerer
	// UserAgent of all requests; "": layer-resolver.
	UserAgent string
}

// Client asks registries. It is safe for concurrent use.
type Client struct {
	policy    *policy.Policy
	conf      *mirrors.Conf
	transport *transport
	manifests *http.Client
	auth      *authorizer
	quotas    *quotas
	mirrors   []mirrors.Entry
	// mirrored are the rules of these and of SetMirrors.
	mirrored atomic.Pointer[mirrors.Rules]
}

// ErrNoCredentials is wrapped by the error of a registry that was not asked, because no
// keychain has credentials for it and keychains.NotAnonymously is among them.
var ErrNoCredentials = errors.New("no credentials")

// Resolution is the result of resolving a reference.
type Resolution struct {
	// Digest that the registry has for the reference, which is that of an index or
	// of the manifest itself.
	Digest string
	// Index is set if Digest is that of an index.
	Index bool
	// Manifests, one for each platform found, in the order of the platforms asked
	// for, without duplicates. Platform is empty if there is no index.
	Manifests []v1alpha1.ImageManifestSpec
	// By is the keychain whose credential opened the image; nil if it was opened without
	// any.
	By authn.Keychain
}

// New returns a Client, or an error if the configuration is invalid.
func New(config Config) (*Client, error) {
	if config.Policy == nil {
		return nil, errors.New("no policy given")
	}
	if config.RequestsPerSecond < 0 || config.Burst < 0 || config.Timeout < 0 {
		return nil, fmt.Errorf("requests per second %v, burst %d, timeout %s: none may be negative",
			config.RequestsPerSecond, config.Burst, config.Timeout)
	}
	forNodes := DefaultQuotaForNodes
	if config.QuotaForNodes != nil {
		forNodes = *config.QuotaForNodes
	}
	if !(forNodes >= 0 && forNodes <= 1) { // NaN is neither
		return nil, fmt.Errorf("share of quotas for the nodes %v: 0 to 1", forNodes)
	}
	conf, err := mirrors.LoadConf(config.RegistriesConf)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(config)
	if err != nil {
		return nil, err
	}
	quotas := newQuotas(forNodes, transport.label)
	if config.Registerer != nil {
		if err := config.Registerer.Register(quotas.left); err != nil {
			return nil, err
		}
	}
	c := &Client{
		policy:    config.Policy,
		conf:      conf,
		transport: transport,
		manifests: &http.Client{Transport: transport},
		auth:      newAuthorizer(config.Policy, transport),
		quotas:    quotas,
		mirrors:   config.Mirrors,
	}
	return c, errors.Join(c.SetMirrors(nil)...)
}

// Resolve asks for the manifests of a full reference, for the platforms
// ("linux/amd64", as the os and architecture of nodes; with manifest.Containerd after it if
// containerd's choice among the manifests of an index counts, and not CRI-O's). Distinct
// credentials are tried once each, in the order of the keychains. A request without
// credentials is made only if no keychain has any for the registry, unless keychains.Anonymous or
// keychains.NotAnonymously is among the keychains. Every error is an *Error.
func (c *Client) Resolve(ctx context.Context, reference string, platforms []string, keychains []authn.Keychain) (*Resolution, error) {
	return first(ctx, c, reference, keychains, func(ctx context.Context, s *session) (*Resolution, error) {
		found, err := s.resolve(ctx, platforms)
		if err == nil {
			found.By = s.keychain
		}
		return found, err
	})
}

// Digest asks, with a HEAD request, which digest the registry has for a full
// reference. Credentials are used as in Resolve. Every error is an *Error.
func (c *Client) Digest(ctx context.Context, reference string, keychains []authn.Keychain) (string, error) {
	return first(ctx, c, reference, keychains, func(ctx context.Context, s *session) (string, error) { return s.digest(ctx) })
}

// Denied returns why a reference may not be asked for, or nil if it may. It
// only checks the names of the registry and mirrors: addresses are checked when
// they are contacted.
func (c *Client) Denied(reference string) error {
	sources, err := c.sources(reference)
	for _, source := range sources {
		if source.listed {
			return nil
		}
		if err = c.policy.Registry(source.domain); err == nil {
			return nil
		}
	}
	return err
}

// first returns the first answer for a reference among its sources: mirrors
// first, the registry itself last. The error is the registry's, and names the
// mirrors.
func first[T any](ctx context.Context, c *Client, name string, keychains []authn.Keychain, ask func(context.Context, *session) (T, error)) (T, error) {
	var none T
	sources, err := c.sources(name)
	if err != nil {
		return none, withReference(err, name)
	}
	var mirrors []string
	for i, source := range sources {
		answer, err := withCredentials(ctx, c, source, keychains, ask)
		if err == nil {
			return answer, nil
		}
		failure := withReference(err, name)
		if i < len(sources)-1 && ctx.Err() == nil {
			mirrors = append(mirrors, source.domain+": "+failure.Reason)
			continue
		}
		if len(mirrors) > 0 {
			before := "; mirrors before it: " + strings.Join(mirrors, ", ")
			failure.Err = text(failure.Err, "%s%s", failure.Err, before)
			if failure.details != "" {
				failure.details += before
			}
		}
		return none, failure
	}
	return none, &Error{Reason: v1alpha1.ReasonInvalidReference, Reference: name, Err: errors.New("no source")}
}

// withCredentials returns the first answer of a source among the credentials
// for it. A registry may answer NotFound to clients that it does not trust, so
// the other credentials are tried after NotFound too. Of several refusals,
// NotFound is the most useful.
func withCredentials[T any](ctx context.Context, c *Client, source *source, all []authn.Keychain, ask func(context.Context, *session) (T, error)) (T, error) {
	var none T
	if !source.listed {
		if err := c.policy.Registry(source.domain); err != nil {
			return none, denied(source.domain, err)
		}
	}
	credentials, broken := keychains.For(ctx, source.domain, source.repository, all)
	var failure *Error
	if len(credentials) == 0 {
		return none, &Error{Reason: v1alpha1.ReasonUnauthorized, Host: source.domain, Err: text(errors.Join(ErrNoCredentials, broken), "no credentials for registry %s are given", source.domain)}
	}
	for _, credential := range credentials {
		try := func() (T, error) {
			return withLogin(ctx, &session{client: c, source: source, credential: credential.Config, keychain: credential.Of}, ask)
		}
		answer, err := try()
		if err != nil && asError(err).Reason == v1alpha1.ReasonUnauthorized && credential.Renew(ctx, source.domain, source.repository) {
			answer, err = try()
		}
		if err == nil {
			return answer, nil
		}
		last := asError(err)
		if failure == nil || failure.Reason != v1alpha1.ReasonNotFound {
			failure = last
		}
		if ctx.Err() != nil || last.Reason != v1alpha1.ReasonUnauthorized && last.Reason != v1alpha1.ReasonNotFound {
			return none, last
		}
	}
	if broken != nil && failure.Reason == v1alpha1.ReasonUnauthorized {
		// Tenants see the error, and whose these credentials are, and where, is not theirs to see.
		failure.details = fmt.Sprintf("%s; other credentials cannot be read: %s", cmp.Or(failure.details, failure.Err.Error()), broken)
		failure.Err = text(failure.Err, "%s; other credentials cannot be read: the log of layer-resolver has the reason", failure.Err)
	}
	return none, failure
}

// source is a repository from which a reference can be fetched.
type source struct {
	// domain of the registry as in references, for messages and metrics.
	domain string
	// path of the domain's API, and the repository below it.
	path, repository string
	// identifier is a tag, or a digest.
	identifier string
	// byDigest is set if identifier is a digest.
	byDigest bool
	// insecure is set if the administrator allows plain HTTP and certificates that
	// are not verified.
	insecure bool
	// listed by the administrator in registries.conf, or as a mirror.
	listed bool
	// query of requests for manifests tells a mirror for which registry it is asked, as containerd does.
	query string
}

func newSource(named reference.Named) *source {
	s := &source{domain: reference.Domain(named), path: "/v2", repository: reference.Path(named)}
	switch named := named.(type) {
	case reference.Digested:
		s.identifier, s.byDigest = named.Digest().String(), true
	case reference.Tagged:
		s.identifier = named.Tag()
	}
	return s
}

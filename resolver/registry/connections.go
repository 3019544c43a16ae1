package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.podman.io/image/v5/pkg/tlsclientconfig"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/resolver/keychains"
	"github.com/layer-locality/layer-locality/resolver/policy"
)

const (
	// rereadCertificates is how often files with certificates are looked at.
	rereadCertificates = time.Minute
	// maxCertificates bounds one such file (bytes).
	maxCertificates = 4 << 20
)

// connections are the clients of all hosts. A connection that may be used for a registry may
// not be used when another registry sends a request to the same host, so these have
// connections of their own.
type connections struct {
	// verified accepts certificates of known authorities, unverified accepts any.
	verified, unverified       *http.Transport
	verifiedVia, unverifiedVia *http.Transport
	// ofHost are those of hosts with certificates or a proxy of their own.
	ofHost map[hostKey]*http.Transport
}

type hostKey struct {
	host          string
	insecure, via bool
}

// through returns the client for a hop.
func (c *connections) through(x *exchange, contact policy.Contact) *http.Transport {
	insecure, via := x.source.insecure, contact.Via != ""
	if own := c.ofHost[hostKey{policy.Canonical(cmp.Or(contact.Via, contact.Registry)), insecure, via}]; own != nil {
		return own
	}
	switch {
	case insecure && via:
		return c.unverifiedVia
	case insecure:
		return c.unverified
	case via:
		return c.verifiedVia
	}
	return c.verified
}

func (c *connections) closeIdle() {
	for _, client := range []*http.Transport{c.verified, c.unverified, c.verifiedVia, c.unverifiedVia} {
		client.CloseIdleConnections()
	}
	for _, client := range c.ofHost {
		client.CloseIdleConnections()
	}
}

// connector makes connections, anew when the files with certificates change.
type connector struct {
	caBundles []string
	certsDir  string
	// proxies by host.
	proxies map[string]*url.URL
	timeout time.Duration
	// dialer checks the addresses of registries, proxyDialer those of proxies.
	dialer, proxyDialer *net.Dialer
	clock               clock.PassiveClock

	now     atomic.Pointer[connections]
	mu      sync.Mutex
	checked time.Time
	files   [sha256.Size]byte
}

func newConnector(config Config, timeout time.Duration, dialer, proxyDialer *net.Dialer) (*connector, error) {
	c := &connector{
		caBundles: config.CABundles, certsDir: config.CertsDir, proxies: map[string]*url.URL{},
		timeout: timeout, dialer: dialer, proxyDialer: proxyDialer, clock: clock.RealClock{},
	}
	for host, proxy := range config.Proxies {
		if err := policy.CheckHost(host); err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		if proxy == nil || proxy.Scheme != "http" && proxy.Scheme != "https" || proxy.Host == "" {
			return nil, fmt.Errorf("proxy of %s: expected an address such as http://proxy.example.com:3128", host)
		}
		c.proxies[policy.Canonical(host)] = proxy
	}
	files, err := c.fingerprint()
	if err != nil {
		return nil, err
	}
	made, err := c.build()
	if err != nil {
		return nil, err
	}
	c.files, c.checked = files, c.clock.Now()
	c.now.Store(made)
	return c, nil
}

// connections returns the clients, with the certificates as they are in the files. If those
// cannot be read, the ones before stay.
func (c *connector) connections(ctx context.Context) *connections {
	if len(c.caBundles) == 0 && c.certsDir == "" {
		return c.now.Load()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock.Since(c.checked) < rereadCertificates {
		return c.now.Load()
	}
	c.checked = c.clock.Now()
	files, err := c.fingerprint()
	if err == nil && files == c.files {
		return c.now.Load()
	}
	made := (*connections)(nil)
	if err == nil {
		made, err = c.build()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read changed certificates: the earlier ones are used")
		return c.now.Load()
	}
	c.files = files
	c.now.Swap(made).closeIdle()
	return made
}

// fingerprint is the hash of all files with certificates and their names.
func (c *connector) fingerprint() (sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	add := func(path string) error {
		content, err := keychains.ReadAtMost(path, maxCertificates)
		if err == nil {
			fmt.Fprintf(hash, "%q %d ", path, len(content))
			hash.Write(content)
		}
		return err
	}
	for _, path := range c.caBundles {
		if err := add(path); err != nil {
			return sum, fmt.Errorf("CA bundle: %w", err)
		}
	}
	hosts, err := c.hosts()
	if err != nil {
		return sum, err
	}
	for _, host := range hosts {
		files, err := filesIn(filepath.Join(c.certsDir, host))
		if err != nil {
			return sum, err
		}
		for _, path := range files {
			if err := add(path); err != nil {
				return sum, fmt.Errorf("certificates of %s: %w", host, err)
			}
		}
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

// hosts returns the names of the folders of the certificates' folder.
func (c *connector) hosts() (hosts []string, err error) {
	if c.certsDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(c.certsDir)
	if err != nil {
		return nil, fmt.Errorf("folder of certificates: %w", err)
	}
	for _, entry := range entries {
		// Volumes keep their versions in folders that begin with two dots, and link to them.
		info, err := os.Stat(filepath.Join(c.certsDir, entry.Name()))
		if strings.HasPrefix(entry.Name(), ".") || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("folder of certificates: %w", err)
		}
		if !info.IsDir() {
			return nil, fmt.Errorf("%s is no folder: expected one for each host, such as %s", filepath.Join(c.certsDir, entry.Name()), filepath.Join(c.certsDir, "registry.example.com:5000", "ca.crt"))
		}
		if err := policy.CheckHost(entry.Name()); err != nil {
			return nil, fmt.Errorf("folder of certificates: %w", err)
		}
		hosts = append(hosts, entry.Name())
	}
	return hosts, nil
}

// filesIn returns the files with certificates and keys in a folder.
func filesIn(dir string) (files []string, err error) {
	for _, ending := range []string{"crt", "cert", "key"} {
		found, err := filepath.Glob(filepath.Join(dir, "*."+ending))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

func (c *connector) build() (*connections, error) {
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	client := func(insecure bool) *http.Transport { return c.client(tlsConfig(roots, insecure)) }
	made := &connections{
		verified: client(false), unverified: client(true), verifiedVia: client(false), unverifiedVia: client(true),
		ofHost: map[hostKey]*http.Transport{},
	}
	folders := map[string]string{}
	hosts, err := c.hosts()
	if err != nil {
		return nil, err
	}
	for _, host := range hosts {
		folders[policy.Canonical(host)] = filepath.Join(c.certsDir, host)
	}
	for host := range c.proxies {
		if _, ok := folders[host]; !ok {
			folders[host] = ""
		}
	}
	for host, folder := range folders {
		for _, key := range []hostKey{{host, false, false}, {host, false, true}, {host, true, false}, {host, true, true}} {
			if made.ofHost[key], err = c.clientOf(key, folder, roots); err != nil {
				return nil, err
			}
		}
	}
	return made, nil
}

// roots returns the system's authorities and those of the bundles; nil if there are no
// bundles, which means the system's.
func (c *connector) roots() (*x509.CertPool, error) {
	if len(c.caBundles) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the system's certificates: %w", err)
	}
	for _, path := range c.caBundles {
		if err := addAuthorities(pool, path); err != nil {
			return nil, fmt.Errorf("CA bundle: %w", err)
		}
	}
	return pool, nil
}

func addAuthorities(pool *x509.CertPool, path string) error {
	content, err := keychains.ReadAtMost(path, maxCertificates)
	if err == nil && !pool.AppendCertsFromPEM(content) {
		err = fmt.Errorf("%s has no certificate in PEM form", path)
	}
	return err
}

// clientOf returns the client of a host with certificates in a folder ("" for none), or with
// a proxy.
func (c *connector) clientOf(key hostKey, folder string, roots *x509.CertPool) (*http.Transport, error) {
	config := tlsConfig(roots, key.insecure)
	if roots != nil {
		config.RootCAs = roots.Clone() // the folder's are added to it
	}
	if folder != "" {
		// The library passes over what is no certificate.
		files, err := filepath.Glob(filepath.Join(folder, "*.crt"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := addAuthorities(x509.NewCertPool(), file); err != nil {
				return nil, fmt.Errorf("certificates of %s: %w", key.host, err)
			}
		}
		if err := tlsclientconfig.SetupCertificates(folder, config); err != nil {
			return nil, fmt.Errorf("certificates of %s: %w", key.host, err)
		}
	}
	if key.via {
		// A registry that sends requests here must not have the resolver show who it is.
		config.Certificates = nil
	}
	client := c.client(config)
	if proxy := c.proxies[key.host]; proxy != nil {
		c.useProxy(client, proxy, roots)
	}
	return client, nil
}

// useProxy makes a client ask through a proxy, which looks names up itself.
func (c *connector) useProxy(client *http.Transport, proxy *url.URL, roots *x509.CertPool) {
	client.Proxy = http.ProxyURL(proxy)
	client.DialContext = c.proxyDialer.DialContext
	if proxy.Scheme == "https" {
		// Registries that are not verified, and client certificates, are not the proxy's.
		config := tlsConfig(roots, false)
		client.DialTLSContext = (&tls.Dialer{NetDialer: c.proxyDialer, Config: config}).DialContext
	}
	client.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return &refusal{v1alpha1.ReasonUnavailable, fmt.Sprintf("cannot be reached: its proxy answered %d", resp.StatusCode)}
		}
		return nil
	}
}

func tlsConfig(roots *x509.CertPool, insecure bool) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            roots,
		InsecureSkipVerify: insecure, // only for registries that registries.conf marks insecure
	}
}

func (c *connector) client(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // of the environment: see the package's documentation
		DialContext:            c.dialer.DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    c.timeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// Digests are computed over the bytes as sent, and a small answer must not
		// become a large one.
		DisableCompression: true,
	}
}

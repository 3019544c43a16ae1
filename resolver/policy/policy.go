// Package policy decides which registries the resolver may ask, and at which
// addresses. Whoever creates a pod chooses the registry that is asked from inside
// the cluster's network. Without a policy, that is a way to reach anything there.
package policy

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/distribution/reference"
)

// Config is what the administrator allows.
type Config struct {
	// Registries that may be asked, host or host:port as in references
	// ("docker.io"); "*" is any.
	Registries []string
	// Networks that may be contacted although they are loopback, link-local,
	// private or otherwise special.
	Networks []netip.Prefix
}

// Policy answers whether a registry may be asked and an address contacted. It is
// safe for concurrent use.
type Policy struct {
	any      bool
	listed   map[string]bool
	inUse    atomic.Pointer[map[string]bool]
	networks []netip.Prefix
}

var domain = regexp.MustCompile("^(?:" + reference.DomainRegexp.String() + ")$")

// New returns a Policy, or an error that names the invalid entry.
func New(config Config) (*Policy, error) {
	p := &Policy{listed: map[string]bool{}}
	for _, registry := range config.Registries {
		if registry == "*" {
			p.any = true
			continue
		}
		if !domain.MatchString(registry) {
			return nil, fmt.Errorf("registry %q: expected a host or host:port as in image names, or *", registry)
		}
		p.listed[canonical(registry)] = true
	}
	for _, network := range config.Networks {
		if !network.IsValid() || network.Addr().Is4In6() {
			return nil, fmt.Errorf("network %q: expected an address and the length of the prefix, 10.0.0.0/8", network)
		}
		p.networks = append(p.networks, network.Masked())
	}
	p.SetInUse(nil)
	return p, nil
}

// SetInUse replaces the registries that nodes' images come from. They are
// allowed like the listed ones: nodes have pulled from them, so they are more
// than a name that somebody wrote into a pod.
func (p *Policy) SetInUse(registries []string) {
	inUse := make(map[string]bool, len(registries))
	for _, registry := range registries {
		inUse[canonical(registry)] = true
	}
	p.inUse.Store(&inUse)
}

// Registry returns nil if the registry, host or host:port as in references, may
// be asked, and *Denied otherwise.
func (p *Policy) Registry(host string) error {
	name := canonical(host)
	if p.any || p.listed[name] || (*p.inUse.Load())[name] {
		return nil
	}
	return &Denied{Registry: name}
}

// Address returns nil if the address may be contacted, and *Denied otherwise.
// Call it for every connection, with the address that is contacted: if a name
// is looked up twice, the address may differ.
func (p *Policy) Address(addr netip.Addr) error {
	// A zone chooses an interface, not a network; an IPv4-mapped address is
	// contacted as IPv4.
	addr = addr.WithZone("").Unmap()
	if contain(p.networks, addr) {
		return nil
	}
	if !addr.IsValid() || contain(special, addr) || addr.Is6() && !global.Contains(addr) && !nat64.Contains(addr) {
		return &Denied{Address: addr}
	}
	if v4, ok := embedded(addr); ok {
		return p.Address(v4)
	}
	return nil
}

// Denied says what the policy does not allow: a registry or an address.
type Denied struct {
	// Registry that is neither listed nor in use, if that is the reason.
	Registry string
	// Address that is special and in no listed network, if that is the reason.
	Address netip.Addr
}

func (d *Denied) Error() string {
	if !d.Address.IsValid() {
		return fmt.Sprintf("registry %s is neither allowed nor the source of an image on a node: allow it with --allow-registry=%s", d.Registry, d.Registry)
	}
	return fmt.Sprintf("address %s is not a public one: allow its network with --allow-network=%s", d.Address, netip.PrefixFrom(d.Address, d.Address.BitLen()))
}

// canonical makes the names of one registry equal.
func canonical(registry string) string {
	switch name := strings.ToLower(registry); name {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	default:
		return name
	}
}

// special are the networks of the IANA special-purpose address registries that
// contain no public hosts.
var special = prefixes(
	"0.0.0.0/8",         // this network, RFC 791
	"10.0.0.0/8",        // private, RFC 1918
	"100.64.0.0/10",     // shared behind carrier-grade NAT, RFC 6598
	"127.0.0.0/8",       // loopback, RFC 1122
	"168.63.129.16/32",  // the host of an Azure machine: public by number only
	"169.254.0.0/16",    // link-local, RFC 3927: metadata of clouds
	"172.16.0.0/12",     // private, RFC 1918
	"192.0.0.0/24",      // IETF protocols, RFC 6890
	"192.0.2.0/24",      // documentation, RFC 5737
	"192.88.99.0/24",    // 6to4 relays, RFC 7526
	"192.168.0.0/16",    // private, RFC 1918
	"198.18.0.0/15",     // benchmarks, RFC 2544
	"198.51.100.0/24",   // documentation, RFC 5737
	"203.0.113.0/24",    // documentation, RFC 5737
	"224.0.0.0/4",       // multicast, RFC 1112
	"240.0.0.0/4",       // reserved and broadcast, RFC 1112
	"2001::/23",         // IETF protocols, RFC 2928, and Teredo in it
	"2001:db8::/32",     // documentation, RFC 3849
	"2620:4f:8000::/48", // AS112, RFC 7534
	"3fff::/20",         // documentation, RFC 9637
)

var (
	// global is the part of IPv6 that public addresses are assigned from. Loopback,
	// unspecified, unique local, link-local, site-local, multicast and IPv4-compatible
	// addresses are outside of it.
	global = netip.MustParsePrefix("2000::/3")
	// nat64 is the well-known prefix of RFC 6052. The local prefixes of RFC 8215
	// belong to the cluster and have to be listed.
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// embedded returns the IPv4 address that a gateway contacts for an IPv6 address.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	raw := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(raw[12:16])), true
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(raw[2:6])), true
	}
	return netip.Addr{}, false
}

func contain(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(network netip.Prefix) bool { return network.Contains(addr) })
}

func prefixes(list ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(list))
	for i, prefix := range list {
		parsed[i] = netip.MustParsePrefix(prefix)
	}
	return parsed
}

// Package policy decides which registries the resolver may ask, and at which
// addresses. Whoever creates a pod chooses the registry that is asked from inside
// the cluster's network. Without a policy, that is a way to reach anything there.
package policy

import (
	"cmp"
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
	// private or otherwise special: for registries that somebody names, not for hosts to
	// which a registry sends requests.
	Networks []netip.Prefix
	// HostNetworks are Networks for one host only, whoever names it.
	HostNetworks map[string][]netip.Prefix
	// Denied networks are contacted in no case.
	Denied []netip.Prefix
}

// Policy answers whether a registry may be asked and an address contacted. It is
// safe for concurrent use.
type Policy struct {
	any      bool
	listed   map[string]bool
	inUse    atomic.Pointer[map[string]bool]
	networks []netip.Prefix
	ofHost   map[string][]netip.Prefix
	denied   []netip.Prefix
	// cluster are the networks of the cluster's pods and services.
	cluster atomic.Pointer[[]netip.Prefix]
}

var domain = regexp.MustCompile("^(?:" + reference.DomainRegexp.String() + ")$")

// New returns a Policy, or an error that names the invalid entry.
func New(config Config) (*Policy, error) {
	p := &Policy{listed: map[string]bool{}, ofHost: map[string][]netip.Prefix{}}
	for _, registry := range config.Registries {
		if registry == "*" {
			p.any = true
			continue
		}
		if err := CheckHost(registry); err != nil {
			return nil, fmt.Errorf("%w, or *", err)
		}
		p.listed[Canonical(registry)] = true
	}
	var err error
	if p.networks, err = checked(config.Networks); err != nil {
		return nil, err
	}
	if p.denied, err = checked(config.Denied); err != nil {
		return nil, err
	}
	for host, networks := range config.HostNetworks {
		if err := CheckHost(host); err != nil {
			return nil, err
		}
		if p.ofHost[Canonical(host)], err = checked(networks); err != nil {
			return nil, err
		}
	}
	p.SetInUse(nil)
	p.SetCluster(nil)
	return p, nil
}

// CheckHost returns an error if a text is no host or host:port as in references.
func CheckHost(host string) error {
	if !domain.MatchString(host) {
		return fmt.Errorf("host %q: expected a host or host:port as in image names", host)
	}
	return nil
}

func checked(networks []netip.Prefix) ([]netip.Prefix, error) {
	masked := make([]netip.Prefix, len(networks))
	for i, network := range networks {
		if !network.IsValid() || network.Addr().Is4In6() {
			return nil, fmt.Errorf("network %q: expected an address and the length of the prefix, 10.0.0.0/8", network)
		}
		masked[i] = network.Masked()
	}
	return masked, nil
}

// SetInUse replaces the registries that nodes' images come from. They are
// allowed like the listed ones: nodes have pulled from them, so they are more
// than a name that somebody wrote into a pod.
func (p *Policy) SetInUse(registries []string) {
	inUse := make(map[string]bool, len(registries))
	for _, registry := range registries {
		inUse[Canonical(registry)] = true
	}
	p.inUse.Store(&inUse)
}

// Registry returns nil if the registry, host or host:port as in references, may
// be asked, and *Denied otherwise.
func (p *Policy) Registry(host string) error {
	name := Canonical(host)
	if p.any || p.listed[name] || (*p.inUse.Load())[name] {
		return nil
	}
	return &Denied{Registry: name}
}

// SetCluster replaces the networks of the cluster's pods and services. A wider network
// that the administrator allows does not open them.
func (p *Policy) SetCluster(networks []netip.Prefix) { p.cluster.Store(&networks) }

// Contact is for whom an address is contacted.
type Contact struct {
	// Registry that somebody named, or its mirror: host or host:port.
	Registry string
	// Via is the host that is contacted if the registry sent the request there, by a
	// redirect or as its token server; empty if it is the registry itself.
	Via string
}

// Address is Contact for a registry that has no networks of its own.
func (p *Policy) Address(addr netip.Addr) error { return p.Contact(addr, Contact{}) }

// Contact returns nil if the address may be contacted, and *Denied otherwise.
// Call it for every connection, with the address that is contacted: if a name
// is looked up twice, the address may differ.
//
// A registry that somebody named may be in the allowed networks. Nobody has named a host to
// which it sends requests, so this has to be public or listed.
func (p *Policy) Contact(addr netip.Addr, to Contact) error {
	// A zone chooses an interface, not a network; an IPv4-mapped address is
	// contacted as IPv4.
	addr = addr.WithZone("").Unmap()
	v4, embeds := embedded(addr)
	if !addr.IsValid() || contain(p.denied, addr) || embeds && contain(p.denied, v4) {
		return &Denied{Address: addr, Via: to.Via, Forbidden: true}
	}
	host := Canonical(cmp.Or(to.Via, to.Registry))
	if contain(p.ofHost[host], addr) {
		return nil
	}
	if p.any || p.listed[host] {
		to.Via = ""
	}
	cluster := longest(*p.cluster.Load(), addr)
	if allowed := longest(p.networks, addr); to.Via == "" && allowed >= 0 && allowed >= cluster {
		return nil
	}
	if cluster >= 0 || contain(special, addr) || addr.Is6() && !global.Contains(addr) && !nat64.Contains(addr) {
		return &Denied{Address: addr, Via: to.Via}
	}
	if embeds {
		return p.Contact(v4, to)
	}
	return nil
}

// Proxy returns nil if a proxy that the administrator named may be contacted at an address:
// anywhere but in a denied network. Nobody else can name one.
func (p *Policy) Proxy(addr netip.Addr) error {
	addr = addr.WithZone("").Unmap()
	if v4, embeds := embedded(addr); !addr.IsValid() || contain(p.denied, addr) || embeds && contain(p.denied, v4) {
		return &Denied{Address: addr, Forbidden: true}
	}
	return nil
}

// longest returns the number of bits of the longest prefix that contains an address; -1 if
// none does.
func longest(networks []netip.Prefix, addr netip.Addr) int {
	bits := -1
	for _, network := range networks {
		if network.Contains(addr) {
			bits = max(bits, network.Bits())
		}
	}
	return bits
}

// Denied is what the policy does not allow: a registry or an address.
type Denied struct {
	// Registry that is neither listed nor in use, if that is the reason.
	Registry string
	// Address that is special or in the cluster, and in no network that is allowed for its
	// host, if that is the reason.
	Address netip.Addr
	// Via is the host that has the address if a registry sent the request there.
	Via string
	// Forbidden is set if no option allows the address.
	Forbidden bool
}

func (d *Denied) Error() string {
	only := ""
	if d.Address.IsValid() {
		only = netip.PrefixFrom(d.Address, d.Address.BitLen()).String()
	}
	switch {
	case !d.Address.IsValid() && !d.Forbidden:
		return fmt.Sprintf("registry %s is neither allowed nor the source of an image on a node: allow it with --allow-registry=%s", d.Registry, d.Registry)
	case d.Forbidden:
		return fmt.Sprintf("address %s is in a network of --deny-network", d.Address)
	case d.Via != "":
		return fmt.Sprintf("address %s is not a public one, and %s is no registry that somebody named: allow it with --allow-network=%s=%s", d.Address, d.Via, d.Via, only)
	}
	return fmt.Sprintf("address %s is not a public one, or in the cluster: allow its network with --allow-network=%s", d.Address, only)
}

// Canonical makes the names of one registry equal, host or host:port: case and the default port of HTTPS do not count.
func Canonical(registry string) string {
	switch name := strings.TrimSuffix(strings.ToLower(registry), ":443"); name {
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

package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func networks(list ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(list))
	for i, network := range list {
		parsed[i] = netip.MustParsePrefix(network)
	}
	return parsed
}

// Who may lead where: a registry that somebody names, one with a network of its own, and a
// host to which a registry sends requests.
func TestContact(t *testing.T) {
	const evil, plain, special, listed = "evil.example.com", "registry.example.com", "special.example.com", "listed.example.com:5000"
	p := mustNew(t, Config{
		Registries:   []string{listed, "docker.io"},
		Networks:     networks("10.20.0.0/16", "fd00:20::/32"),
		HostNetworks: map[string][]netip.Prefix{special: networks("10.30.0.0/16")},
		Denied:       networks("10.20.66.0/24", "8.8.8.0/24", "2001:4860::/32"),
	})
	p.SetInUse([]string{evil, plain})
	for _, c := range []struct {
		registry, via, addr string
		allowed             bool
	}{
		{plain, "", "10.20.0.1", true},
		{plain, "", "fd00:20::1", true},
		{plain, "", "10.30.0.1", false}, // that network is another registry's
		{special, "", "10.30.0.1", true},
		{special, "", "10.20.0.1", true},
		{evil, "", "1.1.1.1", true},
		// What evil redirects to, or names as its token server.
		{evil, "internal.example.com", "10.20.0.1", false},
		{evil, "internal.example.com", "fd00:20::1", false},
		{evil, "10.20.0.1:2379", "10.20.0.1", false},
		{evil, plain, "10.20.0.1", false}, // in use, but not listed
		{evil, listed, "10.20.0.1", true},
		{evil, "listed.example.com:2379", "10.20.0.1", false}, // another port of it
		{evil, special, "10.30.0.1", true},
		{evil, special, "10.20.0.1", false},
		{evil, special + ":2379", "10.30.0.1", false},
		{evil, "cdn.example.com", "1.1.1.1", true},
		// A network of the registry that sends is not one of where it sends to.
		{special, "internal.example.com", "10.30.0.1", false},
		// In no case.
		{plain, "", "10.20.66.1", false},
		{plain, "", "::ffff:10.20.66.1", false},
		{plain, "", "64:ff9b::10.20.66.1", false},
		{plain, "", "8.8.8.8", false},
		{plain, "", "2001:4860::8888", false},
		{evil, listed, "10.20.66.1", false},
	} {
		err := p.Contact(netip.MustParseAddr(c.addr), Contact{Registry: c.registry, Via: c.via})
		if (err == nil) != c.allowed {
			t.Errorf("%s via %q at %s: %v, want allowed: %t", c.registry, c.via, c.addr, err, c.allowed)
		}
		var denied *Denied
		if err != nil && (!errors.As(err, &denied) || !strings.Contains(err.Error(), "-network")) {
			t.Errorf("%s via %q at %s: %v does not name the option", c.registry, c.via, c.addr, err)
		}
	}
	// Where any registry may be named, any host is listed.
	p = mustNew(t, Config{Registries: []string{"*"}, Networks: networks("10.20.0.0/16")})
	if err := p.Contact(netip.MustParseAddr("10.20.0.1"), Contact{Registry: evil, Via: "internal.example.com"}); err != nil {
		t.Error(err)
	}
}

// Pods and services are not asked, also where their addresses are public ones, unless an
// option names them, and not only something around them.
func TestCluster(t *testing.T) {
	p := mustNew(t, Config{
		Networks:     networks("10.0.0.0/8", "10.96.5.0/24"),
		HostNetworks: map[string][]netip.Prefix{"registry.svc.example.com": networks("10.96.0.0/12")},
	})
	p.SetCluster(networks("10.244.0.0/16", "10.96.0.0/12", "2600:1f00:aaaa::/48", "100.127.0.0/16"))
	for addr, allowed := range map[string]bool{
		"10.1.0.1":            true,
		"10.244.3.4":          false,
		"::ffff:10.244.3.4":   false,
		"64:ff9b::10.244.3.4": false,
		"10.96.0.1":           false,
		"10.96.5.1":           true,
		"2600:1f00:aaaa::1":   false,
		"2600:1f00:bbbb::1":   true,
		"100.127.0.1":         false,
	} {
		if err := p.Address(netip.MustParseAddr(addr)); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed: %t", addr, err, allowed)
		}
	}
	if err := p.Contact(netip.MustParseAddr("10.96.0.1"), Contact{Registry: "registry.svc.example.com"}); err != nil {
		t.Error(err)
	}
	p.SetCluster(nil)
	if err := p.Address(netip.MustParseAddr("10.244.3.4")); err != nil {
		t.Errorf("the network is no longer the cluster's: %v", err)
	}
}

func TestNewRefusesHosts(t *testing.T) {
	for _, config := range []Config{
		{HostNetworks: map[string][]netip.Prefix{"": networks("10.0.0.0/8")}},
		{HostNetworks: map[string][]netip.Prefix{"https://registry.example.com": networks("10.0.0.0/8")}},
		{HostNetworks: map[string][]netip.Prefix{"registry.example.com": {{}}}},
		{Denied: []netip.Prefix{{}}},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%+v is taken", config)
		}
	}
}

package policy

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

func mustNew(t *testing.T, config Config) *Policy {
	t.Helper()
	p, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAddress(t *testing.T) {
	p := mustNew(t, Config{})
	public := []string{
		"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.1", "198.17.255.255", "198.20.0.0", "223.255.255.255",
		"2606:4700::1111", "2a00:1450:4001:80b::200e", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1",
	}
	for _, addr := range public {
		if err := p.Address(netip.MustParseAddr(addr)); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	special := []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.100.100.200", "100.127.255.255",
		"127.0.0.1", "127.255.255.255", "168.63.129.16", "169.254.169.254", "172.16.0.0", "172.31.255.255",
		"192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.0", "198.19.255.255", "198.51.100.1",
		"203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
		"100::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
		"64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1.1.1.1",
		"2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:a00:1::",
	}
	for _, addr := range special {
		err := p.Address(netip.MustParseAddr(addr))
		var denied *Denied
		if !errors.As(err, &denied) {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if !strings.Contains(err.Error(), "--allow-network=") {
			t.Errorf("%s: the error %q does not say what allows it", addr, err)
		}
	}
	if p.Address(netip.Addr{}) == nil {
		t.Error("no address at all is allowed")
	}
}

func TestNetworks(t *testing.T) {
	p := mustNew(t, Config{Networks: []netip.Prefix{
		netip.MustParsePrefix("10.1.2.3/16"),
		netip.MustParsePrefix("fd00::/64"),
		netip.MustParsePrefix("fe80::/64"),
	}})
	for addr, allowed := range map[string]bool{
		"10.1.255.255":        true,
		"10.2.0.0":            false,
		"::ffff:10.1.0.1":     true,
		"64:ff9b::10.1.0.1":   true,
		"64:ff9b::10.2.0.1":   false,
		"2002:a01:1::":        true,
		"fd00::1":             true,
		"fd00:0:0:1::1":       false,
		"fe80::1%eth0":        true,
		"127.0.0.1":           false,
		"::ffff:192.168.0.10": false,
	} {
		if err := p.Address(netip.MustParseAddr(addr)); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed: %t", addr, err, allowed)
		}
	}
}

func TestRegistry(t *testing.T) {
	p := mustNew(t, Config{Registries: []string{"index.docker.io", "registry.example:5000", "[2001:db8::1]:5000"}})
	p.SetInUse([]string{"quay.io", "Registry.Example.ORG"})
	for registry, allowed := range map[string]bool{
		"docker.io":             true,
		"index.docker.io":       true,
		"registry-1.docker.io":  true,
		"DOCKER.IO":             true,
		"docker.io:443":         true,
		"docker.io:80":          false,
		"quay.io:443":           true,
		"docker.io.example.com": false,
		"registry.example:5000": true,
		"registry.example":      false,
		"registry.example:5001": false,
		"[2001:db8::1]:5000":    true,
		"quay.io":               true,
		"registry.example.org":  true,
		"*":                     false,
		"":                      false,
	} {
		err := p.Registry(registry)
		if (err == nil) != allowed {
			t.Errorf("%q: %v, want allowed: %t", registry, err, allowed)
		}
		var denied *Denied
		if err != nil && (!errors.As(err, &denied) || !strings.Contains(err.Error(), "--allow-registry=")) {
			t.Errorf("%q: the error %q does not say what allows it", registry, err)
		}
	}
	p.SetInUse(nil)
	if p.Registry("quay.io") == nil {
		t.Error("a registry stays allowed when it is no longer in use")
	}
	if err := p.Registry("docker.io"); err != nil {
		t.Errorf("a listed registry goes with those in use: %v", err)
	}
	if err := mustNew(t, Config{Registries: []string{"*"}}).Registry("whatever.example"); err != nil {
		t.Errorf("*: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, registry := range []string{"", "https://docker.io", "docker.io/library", "a b", "*.example.com", "docker.io:", "host:port"} {
		if _, err := New(Config{Registries: []string{registry}}); err == nil {
			t.Errorf("registry %q is taken", registry)
		}
	}
	for _, network := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		if _, err := New(Config{Networks: []netip.Prefix{network}}); err == nil {
			t.Errorf("network %q is taken", network)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	p := mustNew(t, Config{Registries: []string{"docker.io"}})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				p.SetInUse([]string{"quay.io"})
				if err := p.Registry("docker.io"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

//go:build e2e

package resolver

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// TestRebinding uses a name that first resolves to a registry, and then to
// loopback, where the control machine's etcd is.
func TestRebinding(t *testing.T) {
	const domain, port = "rebinding.test", "2379" // etcd's
	var address atomic.Pointer[net.IP]
	registry := net.IP(c.HostAddress().AsSlice())
	address.Store(&registry)
	answerNames(t, func() net.IP { return *address.Load() })
	serveOn(t, port, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // so that the name is looked up again
		through(w, r)
	})

	// Only the resolver uses our name server, and this registry without a
	// certificate.
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	nameServer := write("resolv.conf", fmt.Sprintf("nameserver %s\n", registry), 0o644)
	registries := write("registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", domain+":"+port), 0o644)
	binary := filepath.Join(filepath.Dir(c.Tool("")), string(cluster.Patched), "layer-resolver")
	wrapper := write("layer-resolver", fmt.Sprintf(`#!/bin/sh
exec unshare --mount sh -c 'mount --bind %s /etc/resolv.conf && exec "$0" "$@"' %s "$@"
`, nameServer, binary), 0o755)
	restartResolver(t, func(s *cluster.Component) {
		s.Binary, s.Args = wrapper, append(s.Args, "--registries-conf="+registries)
	})

	ask := func(name string) string {
		pushSmall(t, name+":v1")
		reference := domain + ":" + port + "/" + name + ":v1"
		announce(t, scenario.Pod{Name: name, Image: reference})
		return reference
	}
	must(t, lab.Resolved(t.Context(), ask("rebinding-before")))
	loopback := net.IPv4(127, 0, 0, 1)
	address.Store(&loopback)
	reference := ask("rebinding-after")
	note := event(t, "rebinding-after")
	if !strings.Contains(note, "("+v1alpha1.ReasonDenied+")") || strings.Contains(note, "127.0.0.1") {
		t.Errorf("event %q, want the reason %s and no address", note, v1alpha1.ReasonDenied)
	}
	logged(t, reference, "address 127.0.0.1 is not a public one")
	if manifest, err := lab.Manifest(t.Context(), reference); err != nil || manifest != nil {
		t.Errorf("object %v, error %v: nothing is written about what is denied", manifest, err)
	}
}

// answerNames runs a name server on this machine's address that resolves every
// name to the same address.
func answerNames(t *testing.T, address func() net.IP) {
	t.Helper()
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: c.HostAddress().AsSlice(), Port: 53})
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, client, err := server.ReadFromUDP(buffer)
			if err != nil {
				return // closed
			}
			var query dnsmessage.Message
			if err := query.Unpack(buffer[:n]); err != nil || len(query.Questions) == 0 {
				continue
			}
			question := query.Questions[0]
			answer := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true},
				Questions: query.Questions,
			}
			if question.Type == dnsmessage.TypeA {
				answer.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class},
					Body:   &dnsmessage.AResource{A: [4]byte(address().To4())},
				}}
			}
			if packed, err := answer.Pack(); err == nil {
				_, _ = server.WriteToUDP(packed, client)
			}
		}
	}()
}

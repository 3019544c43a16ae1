package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestProbes runs the program on all addresses, as HTTP_PORT has it: a probe of the kubelet, which asks the pod's, is
// answered, and so is everything over loopback. Whoever asks another address learns nothing else.
func TestProbes(t *testing.T) {
	_, port, err := net.SplitHostPort(start(t, net.IPv4zero, "--kubeconfig="+emptyCluster(t)))
	must(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	ask := func(address, path string) (status int, body string, err error) {
		url := "http://" + net.JoinHostPort(address, port) + path
		var response *http.Response
		if strings.HasPrefix(path, "/scheduler/") {
			response, err = client.Post(url, "application/json", strings.NewReader(`{"Pod": {}, "NodeNames": ["n1", "n2"]}`))
		} else {
			response, err = client.Get(url)
		}
		if err != nil {
			return 0, "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return response.StatusCode, string(text), err
	}
	ready(t, func() (int, string, error) { return ask("127.0.0.1", "/readyz") })
	addresses := map[string]bool{"127.0.0.1": true, "127.9.9.9": true}
	all, err := net.InterfaceAddrs()
	must(t, err)
	for _, address := range all {
		if network, ok := address.(*net.IPNet); ok && !network.IP.IsLoopback() && network.IP.To4() != nil {
			addresses[network.IP.String()] = false
		}
	}
	if len(addresses) == 2 {
		t.Log("this machine has no address but loopback: TestOverLoopback has others")
	}
	for address, loopback := range addresses {
		for path, open := range map[string]bool{
			"/livez": true, "/readyz": true, "/version": true, "/metrics": false, "/debug/layerlocality?image=a": false,
			"/scheduler/priorities/layers": false, "/scheduler/predicates/safe-overload": false,
		} {
			want := http.StatusUnauthorized
			if loopback || open {
				want = http.StatusOK
			}
			if status, _, err := ask(address, path); err != nil || status != want {
				t.Errorf("%s at %s: %d %v, want %d", path, address, status, err, want)
			}
		}
	}
}

// TestOverLoopback has the addresses at which clients ask.
func TestOverLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.3.2.1": true, "::1": true, "::ffff:127.0.0.1": true,
		"10.244.1.2": false, "::ffff:10.244.1.2": false, "fd00::2": false, "0.0.0.0": false, "::": false,
	} {
		if got := isLoopback(&net.TCPAddr{IP: net.ParseIP(address), Port: 80}); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
	if isLoopback(nil) || isLoopback(&net.UnixAddr{Name: "socket"}) {
		t.Error("no address is loopback")
	}
}

// madeConn is a connection to an address.
type madeConn struct {
	net.Conn
	to     string
	closed bool
}

func (c *madeConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.to)} }
func (c *madeConn) Close() error        { c.closed = true; return nil }

// madeListener accepts connections that are there already.
type madeListener struct {
	net.Listener
	conns []net.Conn
}

func (l *madeListener) Accept() (net.Conn, error) {
	if len(l.conns) == 0 {
		return nil, errors.New("no more")
	}
	conn := l.conns[0]
	l.conns = l.conns[1:]
	return conn, nil
}

// TestBounded has others open far more connections than stay open; those over loopback all stay.
func TestBounded(t *testing.T) {
	var all []*madeConn
	made := &madeListener{}
	for i := range 300 {
		conn := &madeConn{to: []string{"10.244.1.2", "127.0.0.1", "fd00::2"}[i%3]}
		all, made.conns = append(all, conn), append(made.conns, conn)
	}
	listener := &bounded{Listener: made}
	for {
		if _, err := listener.Accept(); err != nil {
			break
		}
	}
	// The last ones of others are open.
	open := 0
	for i := len(all) - 1; i >= 0; i-- {
		loopback := isLoopback(all[i].LocalAddr())
		if !loopback {
			open++
		}
		if want := !loopback && open > len(listener.others); all[i].closed != want {
			t.Errorf("connection %d to %s: closed %t", i, all[i].to, all[i].closed)
		}
	}
}

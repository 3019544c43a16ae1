//go:build e2e

package resolver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/layer-locality/layer-locality/lab/cluster"
	"github.com/layer-locality/layer-locality/lab/scenario"
)

// listenerVariable makes the test binary run as a listener. In this way a
// test starts one in a node's network.
const listenerVariable = "LAYERLOCALITY_TEST_LISTENER"

// contact is what the listener prints: first its port, then each contact.
type contact struct {
	Port          string `json:"port,omitempty"`
	Path          string `json:"path,omitempty"`
	Authorization string `json:"authorization,omitempty"`
	// Opened reports a connection, whatever is sent over it.
	Opened bool `json:"opened,omitempty"`
}

// runListener serves on all addresses until the process is ended.
func runListener() {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", ":0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	write := func(c contact) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(c)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	write(contact{Port: port})
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				write(contact{Opened: true})
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			write(contact{Path: r.URL.Path, Authorization: r.Header.Get("Authorization")})
			w.WriteHeader(http.StatusNotFound)
		}),
	}
	fmt.Fprintln(os.Stderr, server.Serve(listener))
	os.Exit(1)
}

// listener runs on a node.
type listener struct {
	port string

	mu    sync.Mutex
	found []contact
}

// listenOn starts a listener on a node until the end of the test.
func listenOn(t *testing.T, node *cluster.Node) *listener {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := node.Command(self)
	cmd.Env = append(cmd.Env, listenerVariable+"=1")
	cmd.Stderr = os.Stderr
	read, write, err := os.Pipe()
	must(t, err)
	cmd.Stdout = write

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = node.Run(ctx, cmd)
		write.Close()
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		read.Close()
	})
	l, port := &listener{}, make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(read); lines.Scan(); {
			var c contact
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				continue
			}
			if c.Port != "" {
				port <- c.Port
				continue
			}
			l.mu.Lock()
			l.found = append(l.found, c)
			l.mu.Unlock()
		}
	}()
	select {
	case l.port = <-port:
	case <-time.After(time.Minute):
		t.Fatal("the listener does not listen")
	}
	return l
}

func (l *listener) requests() []contact {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.found)
}

// expect waits for a request for a path. No request may have had credentials.
func (l *listener) expect(t *testing.T, path string) {
	t.Helper()
	must(t, scenario.Poll(t.Context(), func(context.Context) error {
		if found := l.requests(); !slices.ContainsFunc(found, func(c contact) bool { return c.Path == path }) {
			return fmt.Errorf("nobody came for %s: %+v", path, found)
		}
		return nil
	}))
	for _, c := range l.requests() {
		if c.Authorization != "" {
			t.Errorf("credentials were sent with %s", c.Path)
		}
	}
}

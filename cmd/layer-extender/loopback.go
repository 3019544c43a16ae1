package main

import (
	"net"
	"net/http"
)

// overLoopback answers only clients of the same machine or pod: others could ask which images are on which node, and
// have pods expected that nobody creates.
func overLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if address, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); !isLoopback(address) {
			http.Error(w, "this is only answered over loopback, or to a client certificate (--client-ca-file)", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// bounded is a listener that keeps few connections open that do not come over loopback. Of more, the oldest is closed: a
// probe is answered before its turn comes.
type bounded struct {
	net.Listener
	others [64]net.Conn
	next   int
}

// Accept returns the next connection. One goroutine at a time may call it.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil || isLoopback(conn.LocalAddr()) {
		return conn, err
	}
	if oldest := b.others[b.next]; oldest != nil {
		_ = oldest.Close() // mostly once more
	}
	b.others[b.next] = conn
	b.next = (b.next + 1) % len(b.others)
	return conn, nil
}

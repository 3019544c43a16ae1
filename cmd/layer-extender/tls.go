package main

import (
	"crypto/tls"
	"fmt"
	"net/http"

	"k8s.io/client-go/util/cert"
)

// tlsConfig returns the settings of HTTPS; nil for HTTP. The files are read again for each
// new connection, of which there are few, so that renewed ones need no restart.
func (o *options) tlsConfig() (*tls.Config, error) {
	if o.certFile == "" {
		return nil, nil
	}
	read := func() (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file=%s, --tls-private-key-file=%s: %w", o.certFile, o.keyFile, err)
		}
		config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
		if o.clientCA != "" {
			if config.ClientCAs, err = cert.NewPool(o.clientCA); err != nil {
				return nil, fmt.Errorf("--client-ca-file=%s: %w", o.clientCA, err)
			}
			// Probes have none: see authenticated.
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
		return config, nil
	}
	config, err := read()
	if err != nil {
		return nil, err
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return read() }
	return config, nil
}

// authenticated answers only clients that have shown a certificate, which the handshake has
// verified.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate is needed (--client-ca-file); of an extender in a KubeSchedulerConfiguration, it is tlsConfig.certFile", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

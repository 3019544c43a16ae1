package peers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"
)

const (
	// keyLife is how long a key is used, announced how long others have known it by then.
	keyLife, announced = 24 * time.Hour, time.Hour
	// clocks of nodes differ by no more.
	clocks = time.Hour

	// HeadBytes of a layer prove that a registry serves it: crio/layercache has the same number.
	HeadBytes = 256 << 10

	proofLabel = "EXPORTER-layerlocality-head"
)

// Identity is the key of this node, in this process alone.
type Identity struct {
	now func() time.Time

	mu      sync.Mutex
	current *key
	next    *key // that others are about to learn; nil if there is none
}

type key struct {
	certificate tls.Certificate
	fingerprint string
	made        time.Time
}

// NewIdentity makes one.
func NewIdentity() (*Identity, error) {
	i := &Identity{now: time.Now}
	var err error
	i.current, err = newKey(i.now())
	return i, err
}

func newKey(now time.Time) (*key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-clocks), NotAfter: now.Add(2*keyLife + clocks)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &key{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: parsed}, fingerprint(parsed), now}, nil
}

func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Keys returns the fingerprints to publish.
func (i *Identity) Keys() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	keys := []string{i.current.fingerprint}
	if i.next != nil {
		keys = append(keys, i.next.fingerprint)
	}
	return keys
}

// rotate makes the next key, or begins to use it, and reports whether there is something to publish.
func (i *Identity) rotate() (changed bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.now()
	switch {
	case i.next == nil && now.Sub(i.current.made) >= keyLife-announced:
		i.next, err = newKey(now)
		return err == nil, err
	case i.next != nil && now.Sub(i.next.made) >= announced:
		i.current, i.next = i.next, nil
		return true, nil
	}
	return false, nil
}

// Run changes keys until the context is done, and has them published, again after a failure.
func (i *Identity) Run(ctx context.Context, publish func(keys []string) error) {
	failed := publish(i.Keys()) != nil
	for ticker := time.NewTicker(time.Minute); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		if changed, err := i.rotate(); failed || changed && err == nil {
			failed = publish(i.Keys()) != nil
		}
	}
}

// config is for both sides of a connection with a peer whose key is known.
func (i *Identity) config(known func(key string) bool) *tls.Config {
	certificate := func() (*tls.Certificate, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		return &i.current.certificate, nil
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() },
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, //nolint:gosec // Nobody issued it: what follows compares the key.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the peer has no certificate")
			}
			leaf, now := state.PeerCertificates[0], i.now()
			switch {
			case now.Before(leaf.NotBefore) || now.After(leaf.NotAfter):
				return fmt.Errorf("the certificate of the peer is valid from %s to %s", leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
			case !known(fingerprint(leaf)):
				return errors.New("no NodeLayers have the key of the peer")
			}
			return nil
		},
	}
}

// proof shows on one connection that the head of a layer is known.
func proof(state *tls.ConnectionState, head []byte) ([]byte, error) {
	secret, err := state.ExportKeyingMaterial(proofLabel, nil, sha256.Size)
	if err != nil {
		return nil, err
	}
	code := hmac.New(sha256.New, secret)
	code.Write(head)
	return code.Sum(nil), nil
}

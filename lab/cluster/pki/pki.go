// Package pki issues the certificates of a cluster: one CA, and a key and
// certificate for every server and every client identity.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// lifetime of every certificate: far longer than a cluster is used, for a test
// or an afternoon.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates and writes them into its folder.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes a certificate authority and writes ca.crt and ca.key into
// the folder dir, which it creates.
func NewAuthority(dir, name string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	a := &Authority{dir: dir, cert: ca, key: key}
	if err := writeKey(a.Key("ca"), key); err != nil {
		return nil, err
	}
	return a, cert.WriteCert(a.Cert("ca"), encode(ca))
}

// Cert returns the path of the certificate with that name, "ca" for the
// authority's.
func (a *Authority) Cert(name string) string { return filepath.Join(a.dir, name+".crt") }

// Key returns the path of the key with that name.
func (a *Authority) Key(name string) string { return filepath.Join(a.dir, name+".key") }

// Server writes a key and a certificate for a server with the given names and
// addresses. The certificate is also valid for a client.
func (a *Authority) Server(file, commonName string, names []string, addresses []net.IP) error {
	return a.issue(file, &x509.Certificate{
		Subject:     pkix.Name{CommonName: commonName},
		DNSNames:    names,
		IPAddresses: addresses,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// Client writes a key and a certificate for a user in the given groups.
func (a *Authority) Client(file, user string, groups ...string) error {
	return a.issue(file, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Kubeconfig issues a client certificate and writes a kubeconfig that holds it
// and needs no other file.
func (a *Authority) Kubeconfig(path, server, user string, groups ...string) error {
	if err := a.Client(filepath.Base(path), user, groups...); err != nil {
		return err
	}
	certificate, err := os.ReadFile(a.Cert(filepath.Base(path)))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(a.Key(filepath.Base(path)))
	if err != nil {
		return err
	}
	const name = "layer-locality"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: encode(a.cert)}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}

// KeyPair writes a key pair without a certificate, as used to sign service
// account tokens: the private key as .key, the public key as .pub.
func (a *Authority) KeyPair(file string) (private, public string, err error) {
	key, err := newKey()
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", err
	}
	private, public = a.Key(file), filepath.Join(a.dir, file+".pub")
	if err := writeKey(private, key); err != nil {
		return "", "", err
	}
	return private, public, keyutil.WriteKey(public, pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der}))
}

func (a *Authority) issue(file string, template *x509.Certificate) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	// A clock that is set back a little must not make the certificate invalid.
	template.NotBefore = a.cert.NotBefore.Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", file, err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if err := writeKey(a.Key(file), key); err != nil {
		return err
	}
	return cert.WriteCert(a.Cert(file), encode(signed))
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func writeKey(path string, key crypto.PrivateKey) error {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return keyutil.WriteKey(path, data)
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw})
}

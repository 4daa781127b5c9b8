package fleet

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"time"
)

// The files of an authority in its directory.
const (
	caCert = "ca.crt"
	caKey  = "ca.key"
)

// memberName is the common name of the members of etcd. No other certificate makes a member.
const memberName = "fairlead-store"

// lifetime is that of a certificate. Nothing renews one, so it is longer than that of a machine.
const lifetime = 20 * 365 * 24 * time.Hour

// skew is how far the clocks of two machines may differ.
const skew = 24 * time.Hour

// An authority signs the certificates of a cluster's own etcd.
type authority struct {
	cert *x509.Certificate
	key  crypto.PrivateKey
	pem  []byte // of cert
}

// newAuthority makes one, in a directory that root alone may read.
func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := template("Fairlead")
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	if err := write(filepath.Join(dir, "ca"), c, c, key, key); err != nil {
		return nil, err
	}
	return readAuthority(dir)
}

// readAuthority reads one.
func readAuthority(dir string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, caCert), filepath.Join(dir, caKey))
	if err != nil {
		return nil, err
	}
	return &authority{cert: pair.Leaf, key: pair.PrivateKey,
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})}, nil
}

// issue writes the certificate of a name, and its key: path.crt and path.key. It is one of a server if there is an address.
func (a *authority) issue(path, name string, ip net.IP) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c := template(name)
	c.KeyUsage = x509.KeyUsageDigitalSignature
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if ip != nil {
		c.IPAddresses = []net.IP{ip}
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return write(path, c, a.cert, key, a.key)
}

func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-skew), NotAfter: now.Add(lifetime)}
}

// write signs a certificate, and writes it and its key.
func write(path string, c, signer *x509.Certificate, key *ecdsa.PrivateKey, by crypto.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, c, signer, &key.PublicKey, by)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	name := filepath.Base(path)
	return writeFiles(filepath.Dir(path), map[string]string{
		name + ".crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		name + ".key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})),
	})
}

package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// With the role that docs/fleet.md shows, a node does all that it has to. Without the role it does nothing, and a password
// that changed is read again.
func TestLeastRights(t *testing.T) {
	root := startEtcd(t).mustConnect(t)
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	const user = "fairlead"
	do(root.RoleAdd(ctx, user))
	do(root.UserAdd(ctx, user, "first"))
	do(root.UserAdd(ctx, "root", "r"))
	do(root.UserGrantRole(ctx, "root", "root"))
	do(root.AuthEnable(ctx))
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + address}, Username: "root", Password: "r"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })

	password := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(password, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(a Access) *Store {
		a.Cluster, a.Endpoints = "c", []string{"http://" + address}
		s, err := Open(a)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	fails := func(s *Store, wants ...string) {
		t.Helper()
		_, err := s.Look(ctx)
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
	write("first")
	fails(open(Access{}), "--etcd-user")
	s := open(Access{User: user, PasswordFile: password})
	fails(s, "the user needs the role of docs/fleet.md", "/fairlead/c/")

	do(admin.UserGrantRole(ctx, user, user))
	do(admin.RoleGrantPermission(ctx, user, "/fairlead/c/", clientv3.GetPrefixRangeEnd("/fairlead/c/"),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
	if err := s.Forget(ctx, "a"); err != nil {
		t.Error(err)
	}
	if _, err := s.RemovePool(ctx, "large"); err != nil {
		t.Error(err)
	}
	if _, err := s.askSecret(ctx); err != nil {
		t.Error(err)
	}
	if _, err := s.mustConnect(t).Get(ctx, "/other"); err == nil {
		t.Error("the role reads what is not of the fleet")
	}

	do(admin.UserChangePassword(ctx, user, "second"))
	late := open(Access{User: user, PasswordFile: password})
	fails(late, "does not accept --etcd-user fairlead with the content of "+password)
	write("second")
	if _, err := late.Look(ctx); err != nil {
		t.Error(err)
	}
}

// The files of TLS are read for each connection.
func TestTLS(t *testing.T) {
	nstest.NeedProgram(t, "etcd")
	dir := t.TempDir()
	ca, other := newAuthority(t), newAuthority(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	ca.issue(t, path("server"))
	ca.issue(t, path("node"))
	if err := os.WriteFile(path("true-ca"), ca.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	const url = "https://" + address
	cmd := exec.Command("etcd", "--data-dir", path("data"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--cert-file", path("server.crt"), "--key-file", path("server.key"), "--client-cert-auth", "--trusted-ca-file",
		path("true-ca"), "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	s, err := Open(Access{Cluster: "c", Endpoints: []string{url}, CA: path("ca"), Cert: path("node.crt"), Key: path("node.key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := os.WriteFile(path("ca"), other.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Look(t.Context()); err == nil || !strings.Contains(err.Error(), url) {
		t.Errorf("%v: want an error with a CA that has not signed the certificate of etcd", err)
	}
	if err := os.WriteFile(path("ca"), ca.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = s.Init(t.Context(), []blocks.Pool{{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1}}); err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, cert: &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue writes a certificate and its key to files with a name.
func (a *authority) issue(t *testing.T, name string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: filepath.Base(name)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, b := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name+suffix, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A file of this node that is missing or wrong is said at once and by its name, and why etcd refuses a certificate.
func TestWrongFiles(t *testing.T) {
	nstest.NeedProgram(t, "etcd")
	dir := t.TempDir()
	ca, other := newAuthority(t), newAuthority(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	ca.issue(t, path("server"))
	ca.issue(t, path("node"))
	other.issue(t, path("foreign"))
	for name, content := range map[string][]byte{"ca": ca.pem, "empty": nil} {
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const url = "https://" + address
	cmd := exec.Command("etcd", "--data-dir", path("data"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--cert-file", path("server.crt"), "--key-file", path("server.key"), "--client-cert-auth", "--trusted-ca-file",
		path("ca"), "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	look := func(a Access) error {
		a.Cluster, a.Endpoints = "c", []string{url}
		s, err := Open(a)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = s.Look(t.Context())
		return a.Unreached(t.Context(), err)
	}
	good := Access{CA: path("ca"), Cert: path("node.crt"), Key: path("node.key")}
	for look(good) != nil {
		if t.Context().Err() != nil {
			t.Fatal("etcd does not answer")
		}
	}
	for _, c := range []struct {
		a    Access
		want string
	}{
		{Access{CA: path("gone")}, "--etcd-cacert: open " + path("gone")},
		{Access{CA: path("empty")}, "--etcd-cacert: " + path("empty") + " has no certificate in PEM"},
		{Access{CA: good.CA, Cert: path("empty"), Key: good.Key}, "--etcd-cert: " + path("empty") + " has no certificate in PEM"},
		{Access{CA: good.CA, Cert: good.Cert, Key: path("empty")}, "--etcd-key: " + path("empty") + " has no key in PEM"},
		{Access{CA: good.CA, Cert: good.Cert, Key: path("foreign.key")}, path("node.crt") + " and --etcd-key " + path("foreign.key") + ": tls: private key does not match"},
		{Access{CA: good.CA, Cert: path("foreign.crt"), Key: path("foreign.key")}, "etcd refuses the certificate " + path("foreign.crt")},
		{Access{CA: good.CA}, "etcd wants a certificate"},
	} {
		err := look(c.a)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.a, err, c.want)
			continue
		}
		if isLocal := c.a.Cert != path("foreign.crt") && c.a.Cert+c.a.Key != "" || c.a.CA != good.CA; isLocal && errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: etcd was asked", err)
		}
	}
}

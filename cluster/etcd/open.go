package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// An Access says how to reach the etcd of a cluster. The files are read again for each connection, so that their
// content may change while the agent runs.
type Access struct {
	Cluster      string   `json:"cluster"`                // name, which is in each key
	Endpoints    []string `json:"endpoints"`              // URLs of etcd's members
	CA           string   `json:"caCert,omitempty"`       // path of the certificates that sign those of etcd
	Cert         string   `json:"cert,omitempty"`         // path of the certificate of this node
	Key          string   `json:"key,omitempty"`          // path of its key
	User         string   `json:"user,omitempty"`         // empty: no password is used
	PasswordFile string   `json:"passwordFile,omitempty"` // path
	Own          bool     `json:"own,omitempty"`          // `fairlead cluster init` started this etcd
}

// validate says what is wrong, by the names of flags.
func (a Access) validate() error {
	if err := readableCluster(a.Cluster); err != nil {
		return fmt.Errorf("--cluster: %w", err)
	}
	if err := checkURLs(a.Endpoints); err != nil {
		return fmt.Errorf("--etcd: %w", err)
	}
	hasFiles := a.CA != "" || a.Cert != "" || a.Key != ""
	switch {
	case a.scheme() == "http" && hasFiles:
		return fmt.Errorf("--etcd: %s: want https://, because --etcd-cacert, --etcd-cert or --etcd-key is set", a.Endpoints[0])
	case (a.Cert == "") != (a.Key == ""):
		return fmt.Errorf("--etcd-cert: %q and --etcd-key: %q: want both or none", a.Cert, a.Key)
	case (a.User == "") != (a.PasswordFile == ""):
		return fmt.Errorf("--etcd-user: %q and --etcd-password-file: %q: want both or none", a.User, a.PasswordFile)
	}
	return nil
}

func (a Access) scheme() string {
	scheme, _, _ := strings.Cut(a.Endpoints[0], ":")
	return scheme
}

// A Store is where the nodes of a cluster share blocks.
type Store struct {
	access Access
	prefix string // of all keys

	secret  atomic.Pointer[secret]
	highest atomic.Int64 // revision that the watch of all entries has told

	mu     sync.Mutex
	client *clientv3.Client // nil: it is made when it is needed
	dial   func() (*clientv3.Client, error)
}

// Open returns the store of a cluster. It does not wait for etcd.
func Open(a Access) (*Store, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	s := &Store{access: a, prefix: "/fairlead/" + a.Cluster + "/v1/"}
	s.dial = s.newClient
	return s, nil
}

// signIn is the longest time that a password is checked.
const signIn = 5 * time.Second

// connect returns the client, which needs an answer of etcd only where there is a password.
func (s *Store) connect() (*clientv3.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	client, err := s.dial()
	if err != nil {
		return nil, err
	}
	s.client = client
	return client, nil
}

func (s *Store) newClient() (*clientv3.Client, error) {
	password, err := s.access.password(os.ReadFile)
	if err != nil {
		return nil, err
	}
	if _, err := s.access.tls(os.ReadFile); err != nil { // else only a log has it
		return nil, err
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = pause/10, pause/2 // the defaults are a second and two minutes
	c := clientv3.Config{
		Endpoints:   s.Endpoints(),
		Username:    s.access.User,
		Password:    password,
		DialTimeout: signIn,
		Logger:      zap.NewNop(), // each error is returned, too

		DialKeepAliveTime:    10 * time.Second, // a member that is gone without a word is found by then
		DialKeepAliveTimeout: 5 * time.Second,
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect})},
	}
	if s.access.scheme() == "https" {
		c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(s.access.credentials()))
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, s.explain(err)
	}
	return client, nil
}

// failed takes an error of the client. After one about the password, the next call reads the file again.
func (s *Store) failed(err error) error {
	for _, about := range []error{rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty} {
		if errors.Is(rpctypes.Error(err), about) {
			_ = s.Close()
		}
	}
	return s.explain(err)
}

// explain says which etcd an error is of, and what to do about it.
func (s *Store) explain(err error) error {
	at, what := strings.Join(s.access.Endpoints, ","), rpctypes.Error(err)
	switch {
	case errors.Is(what, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd at %s: %w: it does not accept --etcd-user %s with the content of %s", at, err, s.access.User,
			s.access.PasswordFile)
	case errors.Is(what, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd at %s: %w: it has authentication on: say --etcd-user and --etcd-password-file, or --etcd-cert "+
			"and --etcd-key", at, err)
	case errors.Is(what, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcd at %s: %w: the user needs the role of docs/fleet.md: readwrite with the prefix %s", at, err,
			strings.TrimSuffix(s.prefix, "v1/"))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("etcd at %s does not answer: %w: see whether it runs, and whether this node reaches it", at, err)
	}
	return fmt.Errorf("etcd at %s: %w", at, err)
}

// Unreached replaces the advice in an error of an etcd that did not answer in time by the causes, if they are known: the client of
// etcd tries again in silence.
func (a Access) Unreached(ctx context.Context, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var causes []error
	for _, e := range a.Endpoints {
		if cause := a.dial(ctx, e); cause != nil {
			causes = append(causes, fmt.Errorf("%s: %w", e, cause))
		}
	}
	if len(causes) == 0 {
		return err
	}
	return fmt.Errorf("etcd at %s does not answer: %w\n%w", strings.Join(a.Endpoints, ","), context.DeadlineExceeded, errors.Join(causes...))
}

// dial connects to an endpoint as the client does, and closes the connection.
func (a Access) dial(ctx context.Context, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, signIn)
	defer stop()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer c.Close()
	if u.Scheme != "https" {
		return nil
	}
	secure, _, err := a.credentials().ClientHandshake(ctx, u.Host, c)
	if err != nil {
		return err
	}
	return a.refusal(ctx, secure)
}

// refusal returns why a server closes a connection at once. It says what it thinks of a certificate when the handshake is over,
// to one who reads.
func (a Access) refusal(ctx context.Context, c net.Conn) error {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // and settings: none
	until, _ := ctx.Deadline()
	if err := c.SetDeadline(until); err != nil {
		return err
	}
	_, werr := io.WriteString(c, preface)
	_, err := c.Read(make([]byte, 1))
	var alert *net.OpError
	isAlert := errors.As(err, &alert) && alert.Op == "remote error" // as package tls says, whose type of alerts has no name
	switch {
	case isAlert && a.Cert == "":
		return fmt.Errorf("etcd wants a certificate (%w): say --etcd-cert and --etcd-key", err)
	case isAlert:
		return fmt.Errorf("etcd refuses the certificate %s (%w): want one that its --trusted-ca-file has signed", a.Cert, err)
	}
	return cmp.Or(werr, err)
}

// Close ends the connections.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		return nil
	}
	c := s.client
	s.client = nil
	return c.Close()
}

// credentials reads the files for each connection.
func (a Access) credentials() credentials.TransportCredentials {
	return rereading{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), a}
}

type rereading struct {
	credentials.TransportCredentials
	access Access
}

// ClientHandshake implements credentials.TransportCredentials.
func (r rereading) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	config, err := r.access.tls(os.ReadFile)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// tls returns what the files say, which read reads.
func (a Access) tls(read func(path string) ([]byte, error)) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CA != "" {
		b, err := read(a.CA)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("--etcd-cacert: %s has no certificate in PEM", a.CA)
		}
	}
	if a.Cert == "" {
		return config, nil
	}
	cert, err := read(a.Cert)
	if err != nil {
		return nil, fmt.Errorf("--etcd-cert: %w", err)
	}
	key, err := read(a.Key)
	if err != nil {
		return nil, fmt.Errorf("--etcd-key: %w", err)
	}
	if first, _ := pem.Decode(cert); first == nil {
		return nil, fmt.Errorf("--etcd-cert: %s has no certificate in PEM", a.Cert)
	}
	if first, _ := pem.Decode(key); first == nil {
		return nil, fmt.Errorf("--etcd-key: %s has no key in PEM", a.Key)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--etcd-cert %s and --etcd-key %s: %w", a.Cert, a.Key, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// password returns that of the user.
func (a Access) password(read func(path string) ([]byte, error)) (string, error) {
	if a.PasswordFile == "" {
		return "", nil
	}
	b, err := read(a.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("--etcd-password-file: %w", err)
	}
	password := strings.TrimRight(string(b), "\r\n")
	if password == "" {
		return "", fmt.Errorf("--etcd-password-file: %s is empty", a.PasswordFile)
	}
	return password, nil
}

// CheckFiles returns an error if a file is missing, or is not what its flag wants. Read reads them.
func (a Access) CheckFiles(read func(path string) ([]byte, error)) error {
	_, err := a.tls(read)
	if err == nil {
		_, err = a.password(read)
	}
	return err
}

// Clone implements credentials.TransportCredentials.
func (r rereading) Clone() credentials.TransportCredentials {
	return rereading{r.TransportCredentials.Clone(), r.access}
}

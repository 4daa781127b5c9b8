package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	if a.Cluster == "" || strings.ContainsAny(a.Cluster, "/ \t\n") {
		return fmt.Errorf("--cluster: %q: want a name without spaces and /", a.Cluster)
	}
	if len(a.Endpoints) == 0 {
		return errors.New("--etcd: want the URL of at least one member of etcd")
	}
	for _, e := range a.Endpoints {
		u, err := url.Parse(e)
		isURL := err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
		switch {
		case !isURL:
			return fmt.Errorf("--etcd: %q is no URL: want http://HOST:PORT or https://HOST:PORT", e)
		case u.Scheme != a.scheme():
			return fmt.Errorf("--etcd: %s and %s: want one scheme for all members", a.Endpoints[0], e)
		}
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
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = pause/10, pause/2 // the defaults are a second and two minutes
	c := clientv3.Config{
		Endpoints:   s.Endpoints(),
		Username:    s.access.User,
		DialTimeout: signIn,
		Logger:      zap.NewNop(), // each error is returned, too

		DialKeepAliveTime:    10 * time.Second, // a member that is gone without a word is found by then
		DialKeepAliveTimeout: 5 * time.Second,
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect})},
	}
	if s.access.scheme() == "https" {
		c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(s.access.credentials()))
	}
	if s.access.PasswordFile != "" {
		b, err := os.ReadFile(s.access.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-password-file: %w", err)
		}
		if c.Password = strings.TrimRight(string(b), "\r\n"); c.Password == "" {
			return nil, fmt.Errorf("--etcd-password-file: %s is empty", s.access.PasswordFile)
		}
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

// Unreached adds to an error of an etcd that did not answer in time why there is no connection, as far as it is known: the
// client of etcd tries again in silence.
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
	return errors.Join(append([]error{err}, causes...)...)
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
	_, _, err = a.credentials().ClientHandshake(ctx, u.Host, c)
	return err
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
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.access.CA != "" {
		b, err := os.ReadFile(r.access.CA)
		if err != nil {
			return nil, nil, fmt.Errorf("--etcd-cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(b) {
			return nil, nil, fmt.Errorf("--etcd-cacert: %s has no certificate in PEM", r.access.CA)
		}
	}
	if r.access.Cert != "" {
		pair, err := tls.LoadX509KeyPair(r.access.Cert, r.access.Key)
		if err != nil {
			return nil, nil, fmt.Errorf("--etcd-cert and --etcd-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (r rereading) Clone() credentials.TransportCredentials {
	return rereading{r.TransportCredentials.Clone(), r.access}
}

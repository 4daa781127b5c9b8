//go:build kube

package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// Tokens that the API server knows.
const (
	admin             = "administrator"
	agent             = "agent"
	controllerManager = "controller-manager"
	scheduler         = "scheduler"
	proxy             = "proxy"
)

// A cluster is etcd and an API server.
type cluster struct {
	t         *testing.T
	dir       string
	address   string                        // of the API server
	services  string                        // the ranges of Services
	inside    func(args ...string) []string // is a command line that runs where the API server does
	apiserver *process
	client    http.Client
}

// newCluster is a cluster whose API server is in the namespace of the test, which is the switch between the nodes.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), address: "192.0.2.254", services: "10.96.0.0/16"}
	c.inside = func(args ...string) []string { return args }
	nstest.Run(t, "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up; ip addr add "+c.address+"/24 dev br0; "+
		"ip addr add 2001:db8::254/64 dev br0 nodad; ip route add default via 192.0.2.1")
	c.serve()
	c.grantRights()
	return c
}

// serve starts etcd and the API server.
func (c *cluster) serve() {
	c.t.Helper()
	etcd := c.start("etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", "http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380", "--logger", "zap")
	etcd.says("serving client traffic")
	go etcd.log()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	users := []string{admin + ",admin,1,system:masters", agent + ",fairlead-agent,2",
		controllerManager + ",system:kube-controller-manager,3", scheduler + ",system:kube-scheduler,4",
		proxy + ",system:kube-proxy,5"}
	for i := 1; i <= 3; i++ {
		users = append(users, fmt.Sprintf("n%d,system:node:n%d,n%d,system:nodes", i, i, i))
	}
	c.write("tokens.csv", strings.Join(users, "\n")+"\n")
	c.startServer()

	roots := x509.NewCertPool()
	if text, err := os.ReadFile(filepath.Join(c.dir, "certs/apiserver.crt")); err != nil || !roots.AppendCertsFromPEM(text) {
		c.t.Fatal(string(text), err)
	}
	c.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	c.eventually(func() error { return c.ask("GET", "/readyz", "") }) // it has the roles of those that start next
}

// start starts a program where the API server runs.
func (c *cluster) start(name string, args ...string) *process {
	c.t.Helper()
	args = c.inside(append([]string{name}, args...)...)
	return start(c.t, args[0], args[1:]...)
}

func (c *cluster) write(name, text string) (path string) {
	c.t.Helper()
	path = filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// url is where the API server is.
func (c *cluster) url() string { return "https://" + net.JoinHostPort(c.address, "6443") }

// kubeconfig is the path of a file that says where the API server is, for who has a token.
func (c *cluster) kubeconfig(token string) (path string) {
	c.t.Helper()
	return c.write(token+".conf", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"%s","certificate-authority":"%s/certs/apiserver.crt"}}],
"users":[{"name":"u","user":{"token":"%s"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`,
		c.url(), c.dir, token))
}

// startServer starts the API server.
func (c *cluster) startServer() {
	c.t.Helper()
	key := filepath.Join(c.dir, "key.pem")
	c.apiserver = c.start(program(c.t, "kube-apiserver"), "--etcd-servers", "http://127.0.0.1:2379",
		"--service-cluster-ip-range", c.services, "--cert-dir", filepath.Join(c.dir, "certs"), "--bind-address", c.address,
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key,
		"--service-account-signing-key-file", key, "--authorization-mode", "Node,RBAC", "--allow-privileged",
		"--kubelet-preferred-address-types", "InternalIP", "--token-auth-file", filepath.Join(c.dir, "tokens.csv"))
	c.apiserver.says("Serving securely on")
	go c.apiserver.log()
}

// ask sends a request of the administrator to the API server.
func (c *cluster) ask(method, path, format string, args ...any) error {
	_, err := c.as(admin, method, path, fmt.Sprintf(format, args...))
	return err
}

// as sends a request with a token to the API server. Its body is JSON, or YAML.
func (c *cluster) as(token, method, path, body string) (answer []byte, err error) {
	r, err := http.NewRequestWithContext(nstest.Context(c.t), method, c.url()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/yaml")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}

// grantRights gives the agents what they need: to list and to watch nodes.
func (c *cluster) grantRights() {
	c.t.Helper()
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterrole"
	if err := c.ask("POST", roles+"s", `{"metadata":{"name":"fairlead-agent"},
		"rules":[{"apiGroups":[""],"resources":["nodes"],"verbs":["list","watch"]}]}`); err != nil {
		c.t.Fatal(err)
	}
	if err := c.ask("POST", roles+"bindings", `{"metadata":{"name":"fairlead-agent"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"fairlead-agent"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"fairlead-agent"}]}`); err != nil {
		c.t.Fatal(err)
	}
}

// eventually calls f until it succeeds.
func (c *cluster) eventually(f func() error) {
	c.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	ctx := nstest.Context(c.t)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatal(err)
		}
	}
}

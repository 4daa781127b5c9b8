package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serves is the variable of the environment by which the test's program is an API server with two nodes. It names the
// directory of the account's files.
const serves = "FAIRLEAD_TEST_API"

func TestMain(m *testing.M) {
	if dir := os.Getenv(serves); dir != "" {
		fmt.Fprintln(os.Stderr, serveNodes(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveNodes answers as the API server does about nodes, to those who have the token.
func serveNodes(dir string) error {
	certificate, err := newCertificate(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("secret"), 0o400); err != nil {
		return err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:6443", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		watches := r.URL.Query().Get("watch") != ""
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case watches && r.URL.Query().Get("sendInitialEvents") != "": // it lists then
			w.WriteHeader(http.StatusUnprocessableEntity)
			json.NewEncoder(w).Encode(meta.Status{TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status: meta.StatusFailure, Reason: meta.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case watches: // nothing changes
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			list := core.NodeList{TypeMeta: meta.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
				ListMeta: meta.ListMeta{ResourceVersion: "1"}, Items: []core.Node{newNode(1), newNode(2)}}
			json.NewEncoder(w).Encode(list)
		}
	})
	return http.Serve(l, mux)
}

// newNode is a Node object with an address and a range.
func newNode(i int) core.Node {
	return core.Node{
		ObjectMeta: meta.ObjectMeta{Name: fmt.Sprint("n", i), CreationTimestamp: meta.Unix(int64(i), 0)},
		Spec:       core.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:%d::/64", i)}},
		Status: core.NodeStatus{Addresses: []core.NodeAddress{{Type: core.NodeInternalIP,
			Address: fmt.Sprint("192.0.2.", i)}}},
	}
}

// newCertificate makes a server's certificate, and writes it as its own authority.
func newCertificate(file string) (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	is := x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &is, &is, key.Public(), key)
	if err != nil {
		return c, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, os.WriteFile(file, text, 0o644)
}

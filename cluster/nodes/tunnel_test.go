package nodes

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/cluster/directory"
)

const key = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="

// What a node publishes is what the others read of its Node object, and it removes nothing else there.
func TestPublishTunnel(t *testing.T) {
	var asked string
	may := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Content-Type"), " ", string(body))
		w.Header().Set("Content-Type", "application/json")
		if !may {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
			return
		}
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)
	}))
	t.Cleanup(s.Close)
	config := &rest.Config{Host: s.URL}

	tunnel := directory.Tunnel{Key: key, Port: 51820}
	if err := PublishTunnel(t.Context(), config, "n1", tunnel); err != nil {
		t.Fatal(err)
	}
	want := `PATCH /api/v1/nodes/n1 application/merge-patch+json {"metadata":{"annotations":{"fairlead-cni.github.io/wireguard":` +
		`"{\"key\":\"` + key + `\",\"port\":51820}"}}}`
	if asked != want {
		t.Errorf("asked %s\nwant %s", asked, want)
	}
	if err := PublishTunnel(t.Context(), config, "n1", directory.Tunnel{}); err != nil || !strings.HasSuffix(asked,
		`{"metadata":{"annotations":{"fairlead-cni.github.io/wireguard":null}}}`) {
		t.Errorf("asked %s, %v", asked, err)
	}
	may = false
	if err := PublishTunnel(t.Context(), config, "n1", tunnel); err == nil ||
		!strings.Contains(err.Error(), "the right to patch the Node object of its node, which the component cluster/wireguard gives") {
		t.Error(err)
	}
}

// Of the annotations of a Node object, the key is kept. What no agent wrote is not taken for a node without a key.
func TestTunnelOf(t *testing.T) {
	for text, want := range map[string]directory.Tunnel{
		`{"key":"` + key + `","port":51820}`: {Key: key, Port: 51820},
		`{"key":"` + key + `","port":70000}`: {Key: `{"key":"` + key + `","port":70000}`},
		`{"port":51820}`:                     {Key: `{"port":51820}`},
		key:                                  {Key: key},
		"nonsense":                           {Key: "nonsense"},
		"":                                   {},
		strings.Repeat("x", 1<<18):           {Key: strings.Repeat("x", longestTunnel)},
	} {
		full := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"other": "1", TunnelAnnotation: text}}}
		kept, err := strip(full)
		n, ok := kept.(*corev1.Node)
		if err != nil || !ok || len(n.Annotations) != 1 {
			t.Fatalf("%+v, %v", kept, err)
		}
		if got := nodeOf("c", n).Tunnel; got != want {
			t.Errorf("%.80q: %+v; want %+v", text, got, want)
		}
	}
	kept, _ := strip(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"other": "1"}}})
	if n, ok := kept.(*corev1.Node); !ok || n.Annotations != nil || nodeOf("c", n).Tunnel != (directory.Tunnel{}) {
		t.Errorf("%+v; want no annotation", kept)
	}
}

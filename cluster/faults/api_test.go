package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiAddress is where the nodes reach the API server.
const apiAddress = "192.0.2.254:6480"

// An api answers list and watch of Node objects as an API server does, and refuses all else. `make test-kube` runs the
// agent on a real one.
type api struct {
	t testing.TB

	mu      sync.Mutex
	version int
	nodes   map[string]*corev1.Node
	events  []event
	changed chan struct{} // closed at the next event

	server *http.Server
	sent   int // bytes of answers
}

type event struct {
	version int
	what    watch.EventType
	node    *corev1.Node
}

func newAPI(t testing.TB) *api {
	a := &api{t: t, nodes: map[string]*corev1.Node{}, changed: make(chan struct{})}
	a.start()
	t.Cleanup(a.stop)
	return a
}

// start lets the server answer.
func (a *api) start() {
	a.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", apiAddress)
	if err != nil {
		a.t.Fatal(err)
	}
	a.server = &http.Server{Handler: a}
	go a.server.Serve(l)
}

// stop ends all connections, and refuses new ones.
func (a *api) stop() { a.server.Close() }

// set makes or changes the Node object of a node.
func (a *api) set(name string, addresses, podCIDRs []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	what := watch.Modified
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	if was := a.nodes[name]; was != nil {
		n.UID, n.CreationTimestamp = was.UID, was.CreationTimestamp
	} else {
		what = watch.Added
		n.UID, n.CreationTimestamp = types.UID(fmt.Sprint("uid-", a.version)), metav1.Now()
	}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDRs[0], podCIDRs
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	a.add(what, n)
}

// remove deletes the Node object of a node.
func (a *api) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(watch.Deleted, a.nodes[name].DeepCopy())
}

func (a *api) add(what watch.EventType, n *corev1.Node) {
	a.version++
	n.ResourceVersion = strconv.Itoa(a.version)
	a.nodes[n.Name] = n
	if what == watch.Deleted {
		delete(a.nodes, n.Name)
	}
	a.events = append(a.events, event{a.version, what, n})
	close(a.changed)
	a.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	query := r.URL.Query()
	switch {
	case r.URL.Path != "/api/v1/nodes" || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusForbidden)
		a.write(w, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: r.Method + " " + r.URL.Path + " is forbidden"})
	case query.Get("watch") != "true" && query.Get("watch") != "1":
		a.write(w, a.list())
	default:
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		if query.Get("sendInitialEvents") == "true" {
			from = a.initial(w)
		}
		a.watch(w, r, from)
	}
}

func (a *api) list() *corev1.NodeList {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
	for _, n := range a.nodes {
		l.Items = append(l.Items, *n)
	}
	return l
}

// initial sends all nodes as events, and then that they were all.
func (a *api) initial(w http.ResponseWriter) (version int) {
	l := a.list()
	for i := range l.Items {
		a.tell(w, watch.Added, &l.Items[i])
	}
	end := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: l.ResourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	a.tell(w, watch.Bookmark, end)
	version, _ = strconv.Atoi(l.ResourceVersion)
	return version
}

// watch sends what happens after a version, until the client or the server ends.
func (a *api) watch(w http.ResponseWriter, r *http.Request, from int) {
	for {
		a.mu.Lock()
		var news []event
		for _, e := range a.events {
			if e.version > from {
				news = append(news, e)
			}
		}
		changed := a.changed
		a.mu.Unlock()

		for _, e := range news {
			a.tell(w, e.what, e.node)
			from = e.version
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// protobuf is how an API server writes objects for clients that ask for it.
func protobuf() runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return info
}

// write sends an object.
func (a *api) write(w io.Writer, v runtime.Object) {
	if err := protobuf().Serializer.Encode(v, counter{a, w}); err != nil {
		a.t.Error(err)
	}
}

// tell sends an event of a watch.
func (a *api) tell(w io.Writer, what watch.EventType, n *corev1.Node) {
	object, err := runtime.Encode(protobuf().Serializer, n)
	if err != nil {
		a.t.Error(err)
	}
	stream := protobuf().StreamSerializer
	e := &metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: object}}
	if err := stream.Encode(e, stream.NewFrameWriter(counter{a, w})); err != nil {
		a.t.Error(err)
	}
}

// A counter counts what the server sends.
type counter struct {
	*api
	to io.Writer
}

// Write implements io.Writer. A client that is gone is no error.
func (c counter) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.sent += len(b)
	c.mu.Unlock()
	c.to.Write(b)
	return len(b), nil
}

// touch reports the state of a node again, as kubelet does, with as many bytes of images and conditions.
func (a *api) touch(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.nodes[name].DeepCopy()
	n.Status.Images = nil
	for i := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: int64(a.version),
			Names: []string{fmt.Sprintf("registry.example/%d@sha256:%064d", i, i), fmt.Sprintf("registry.example/%d:v1.%d", i, i)}})
	}
	a.add(watch.Modified, n)
}

// bytes is how much the server has sent.
func (a *api) bytes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent
}

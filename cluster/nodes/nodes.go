// Package nodes reads the nodes of a cluster from the API server of Kubernetes. It writes nothing there, unless
// KeepNetworkAvailable or PublishTunnel is called.
package nodes

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// Watch calls changed with all nodes of the cluster once it knows them, and after each change that concerns other
// nodes. While the API server does not answer it calls failed with the cause, at each attempt. It returns when ctx ends.
func Watch(ctx context.Context, config *rest.Config, cluster string, changed func([]directory.Node), failed func(error)) error {
	client, err := newClient(config, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
	if err != nil {
		return err
	}
	source := cache.NewListWatchFromClient(client, "nodes", metav1.NamespaceAll, fields.Everything())
	informer := cache.NewSharedIndexInformer(source, &corev1.Node{}, 0, cache.Indexers{})
	events := make(chan struct{}, 1)
	notify := func() {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		DeleteFunc: func(any) { notify() },
		UpdateFunc: func(former, now any) {
			was, _ := former.(*corev1.Node)
			is, _ := now.(*corev1.Node)
			if was == nil || is == nil || !reflect.DeepEqual(nodeOf(cluster, was), nodeOf(cluster, is)) {
				notify()
			}
		},
	})
	err = errors.Join(err, informer.SetTransform(strip),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			isUsual := errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
			if !isUsual && ctx.Err() == nil {
				failed(err)
			}
		}))
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	for synced := cache.WaitForCacheSync(ctx.Done(), informer.HasSynced); synced && ctx.Err() == nil; {
		var list []directory.Node
		for _, obj := range informer.GetStore().List() {
			if n, ok := obj.(*corev1.Node); ok {
				list = append(list, nodeOf(cluster, n))
			}
		}
		changed(list)
		select {
		case <-events:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// newClient returns a client that knows the objects of a group, and speaks protobuf.
func newClient(config *rest.Config, path string, group schema.GroupVersion,
	add func(*runtime.Scheme) error) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = path, &group
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if c.UserAgent == "" {
		c.UserAgent = "fairlead-agent"
	}
	return rest.RESTClientFor(c)
}

// strip leaves of a Node object what nodeOf reads. An object has 10 to 30 kB with its images and conditions.
func strip(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, Annotations: tunnelOnly(n.Annotations)},
		Spec:   corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
		Status: corev1.NodeStatus{Addresses: n.Status.Addresses},
	}, nil
}

// nodeOf returns what a Node object says of its node. What is no address or prefix that a node can have is left
// out.
func nodeOf(cluster string, n *corev1.Node) directory.Node {
	out := directory.Node{Name: n.Name, Joined: n.CreationTimestamp.Unix(), MAC: overlay.MAC(cluster, n.Name).String(),
		Tunnel: tunnelOf(n.Annotations[TunnelAnnotation])}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if ip = ip.Unmap(); a.Type == corev1.NodeInternalIP && err == nil && ip.IsGlobalUnicast() {
			out.Endpoints = append(out.Endpoints, ip)
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, s := range cidrs {
		if p, err := netip.ParsePrefix(s); err == nil && !p.Addr().Is4In6() {
			out.Prefixes = append(out.Prefixes, p.Masked())
		}
	}
	return out
}

// ErrNotInCluster means that the agent runs in no pod and was told no kubeconfig.
var ErrNotInCluster = errors.New("this is no pod of a cluster: say --kubeconfig FILE")

// InCluster returns the configuration of a pod.
func InCluster() (*rest.Config, error) {
	c, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, ErrNotInCluster
	}
	return c, err
}

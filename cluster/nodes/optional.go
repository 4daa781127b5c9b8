package nodes

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// refusedAgain is when the server is asked again after it refused to list objects.
const refusedAgain = 10 * time.Minute

// CountPolicies calls counted with the number of NetworkPolicy objects, and after each change of it. Without the right to
// list and to watch them, the number is unknown, and it asks again some minutes later. It returns when ctx ends.
func CountPolicies(ctx context.Context, config *rest.Config, counted func(n int, known bool)) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	resource := client.Resource(networkingv1.SchemeGroupVersion.WithResource("networkpolicies"))
	policies := optional{
		source: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return resource.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return resource.Watch(ctx, o)
			},
		},
		of:    &metav1.PartialObjectMetadata{},
		strip: nameOnly,
	}
	last := -1
	return policies.watch(ctx, func(objects []any, known bool) {
		n := len(objects)
		if !known {
			last = -1
			counted(0, false)
			return
		}
		if n != last {
			last = n
			counted(n, true)
		}
	})
}

// nameOnly leaves of an object what it is known by.
func nameOnly(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: o.Name,
		Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion}}, nil
}

// ServiceRanges calls found with the ranges of the cluster's Services, which are ServiceCIDR objects (Kubernetes 1.33 and
// later), once the server has answered, and after each change. A cluster without such objects has none, nor one that gives no
// right to list and to watch them. It returns when ctx ends.
func ServiceRanges(ctx context.Context, config *rest.Config, found func([]netip.Prefix)) error {
	client, err := newClient(config, "/apis", networkingv1.SchemeGroupVersion, networkingv1.AddToScheme)
	if err != nil {
		return err
	}
	ranges := optional{
		source: cache.NewListWatchFromClient(client, "servicecidrs", metav1.NamespaceAll, fields.Everything()),
		of:     &networkingv1.ServiceCIDR{},
	}
	var last []netip.Prefix
	answered := false
	return ranges.watch(ctx, func(objects []any, _ bool) {
		all := rangesOf(objects)
		if answered && slices.Equal(all, last) {
			return
		}
		answered, last = true, all
		found(all)
	})
}

// rangesOf returns the ranges of ServiceCIDR objects, in order.
func rangesOf(objects []any) (all []netip.Prefix) {
	for _, obj := range objects {
		o, ok := obj.(*networkingv1.ServiceCIDR)
		if !ok {
			continue
		}
		for _, text := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil { // the API server refuses what is none
				all = append(all, p.Masked())
			}
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// An optional is a kind of object that the server may not have, or not show to the agent.
type optional struct {
	source cache.ListerWatcher
	of     runtime.Object
	strip  cache.TransformFunc // nil: objects are kept whole
}

// watch calls changed with all objects, and after each change. If the server refuses to list them, changed is told that
// they are unknown, and the server is asked again some minutes later. It returns when ctx ends.
func (o optional) watch(ctx context.Context, changed func(objects []any, known bool)) error {
	for ctx.Err() == nil {
		if !o.watchUntilRefused(ctx, changed) {
			break
		}
		changed(nil, false)
		wait := time.NewTimer(refusedAgain)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
	return ctx.Err()
}

// watchUntilRefused watches until ctx ends or the server refuses.
func (o optional) watchUntilRefused(ctx context.Context, changed func(objects []any, known bool)) (refused bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	informer := cache.NewSharedIndexInformer(o.source, o.of, 0, cache.Indexers{})
	events := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	var isRefused atomic.Bool
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
			isRefused.Store(true)
			stop()
		}
	})
	if o.strip != nil {
		err = errors.Join(err, informer.SetTransform(o.strip))
	}
	_, herr := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(any, any) { notify(nil) }})
	if err != nil || herr != nil { // only of an informer that has begun
		return true
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	for synced := cache.WaitForCacheSync(ctx.Done(), informer.HasSynced); synced && ctx.Err() == nil; {
		changed(informer.GetStore().List(), true)
		select {
		case <-events:
		case <-ctx.Done():
		}
	}
	running.Wait()
	return isRefused.Load()
}

package nodes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// forbiddenAgain is when the server is asked again after it refused to tell the policies.
const forbiddenAgain = 10 * time.Minute

// CountPolicies calls counted with the number of NetworkPolicy objects, and after each change of it. Without the right to
// list and to watch them, the number is unknown, and it asks again some minutes later. It returns when ctx ends.
func CountPolicies(ctx context.Context, config *rest.Config, counted func(n int, known bool)) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if !countUntilForbidden(ctx, client, counted) {
			break
		}
		counted(0, false)
		wait := time.NewTimer(forbiddenAgain)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
	return ctx.Err()
}

// countUntilForbidden counts until ctx ends or the server refuses.
func countUntilForbidden(ctx context.Context, client metadata.Interface, counted func(n int, known bool)) (refused bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	resource := client.Resource(networkingv1.SchemeGroupVersion.WithResource("networkpolicies"))
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return resource.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var forbidden atomic.Bool
	err := errors.Join(informer.SetTransform(nameOnly),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
				forbidden.Store(true)
				stop()
			}
		}))
	if _, herr := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify}); err != nil ||
		herr != nil { // only of an informer that has begun
		return true
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	last := -1
	for synced := cache.WaitForCacheSync(ctx.Done(), informer.HasSynced); synced && ctx.Err() == nil; {
		if n := len(informer.GetStore().ListKeys()); n != last {
			last = n
			counted(n, true)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	running.Wait()
	return forbidden.Load()
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

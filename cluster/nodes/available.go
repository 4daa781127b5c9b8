package nodes

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// KeepNetworkAvailable sets the condition NetworkUnavailable of a node to False whenever it is True, until ctx ends. Some
// controllers of clouds set it, and wait for routes that no program makes beside an overlay: no pod is scheduled on the node
// meanwhile. Failed is told when the API server refuses; the next change of the node tries again.
func KeepNetworkAvailable(ctx context.Context, config *rest.Config, node string, failed func(error)) error {
	client, err := newClient(config, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
	if err != nil {
		return err
	}
	changed := func(obj any) {
		n, ok := obj.(*corev1.Node)
		if !ok || !networkUnavailable(n) {
			return
		}
		patch, err := availablePatch(time.Now())
		if err == nil {
			err = client.Patch(types.StrategicMergePatchType).Resource("nodes").Name(node).SubResource("status").Body(patch).
				Do(ctx).Error()
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, "nodes", metav1.NamespaceAll,
			fields.OneTermEqualSelector(metav1.ObjectNameField, node)),
		ObjectType: &corev1.Node{},
		Transform:  conditionsOnly,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: changed,
			UpdateFunc: func(_, now any) { changed(now) }},
	})
	controller.RunWithContext(ctx)
	return ctx.Err()
}

// conditionsOnly leaves of a Node object what networkUnavailable reads.
func conditionsOnly(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		Status:     corev1.NodeStatus{Conditions: n.Status.Conditions},
	}, nil
}

func networkUnavailable(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue
	})
}

// availablePatch is a strategic merge patch: conditions are merged by their type, so all others stay.
func availablePatch(now time.Time) ([]byte, error) {
	available := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "FairleadIsUp", Message: "fairlead-agent connects the pods of this node",
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now)}
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{available}}})
}

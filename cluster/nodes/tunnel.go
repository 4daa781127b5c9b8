package nodes

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/cluster/directory"
)

// TunnelAnnotation is the annotation of a Node object that has the public key and the port of the node's WireGuard device.
// The agent of the node writes it. Which other agents may is what the cluster's rules say.
const TunnelAnnotation = "fairlead-cni.github.io/wireguard"

// longestTunnel is the longest annotation that is kept, in bytes. One that an agent wrote has some 70.
const longestTunnel = 128

// tunnelOnly leaves of annotations the one that tunnelOf reads.
func tunnelOnly(annotations map[string]string) map[string]string {
	text, is := annotations[TunnelAnnotation]
	if !is {
		return nil
	}
	return map[string]string{TunnelAnnotation: text[:min(len(text), longestTunnel)]}
}

// tunnelOf returns what an annotation says. What no agent wrote is a key that is none, so that the node does not seem to
// have no WireGuard.
func tunnelOf(annotation string) directory.Tunnel {
	var t directory.Tunnel
	if annotation == "" {
		return t
	}
	if err := json.Unmarshal([]byte(annotation), &t); err != nil || t.Key == "" {
		return directory.Tunnel{Key: annotation}
	}
	return t
}

// PublishTunnel writes the annotation of a node, or removes it if the tunnel has no key.
func PublishTunnel(ctx context.Context, config *rest.Config, node string, t directory.Tunnel) error {
	client, err := newClient(config, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
	if err != nil {
		return err
	}
	patch, err := tunnelPatch(t)
	if err != nil {
		return err
	}
	err = client.Patch(types.MergePatchType).Resource("nodes").Name(node).Body(patch).Do(ctx).Error()
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: the agent needs the right to patch the Node object of its node, which the component "+
			"cluster/wireguard gives", err)
	}
	return err
}

// tunnelPatch is a merge patch, which removes what is null (RFC 7396). All other annotations stay.
func tunnelPatch(t directory.Tunnel) ([]byte, error) {
	var value any
	if t.Key != "" {
		text, err := json.Marshal(t)
		if err != nil {
			return nil, err
		}
		value = string(text)
	}
	annotations := map[string]any{TunnelAnnotation: value}
	return json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

package calls

import "cmp"

// PodName returns the runtime's name of the container in CNI_ARGS: NAMESPACE/POD for a pod, a plain name for a
// container of podman, or an empty string if CNI_ARGS has none.
func PodName(args [][2]string) string {
	var namespace, name string
	for _, kv := range args {
		switch kv[0] {
		case "K8S_POD_NAMESPACE":
			namespace = cmp.Or(namespace, kv[1])
		case "K8S_POD_NAME":
			name = cmp.Or(name, kv[1])
		}
	}
	if namespace == "" || name == "" {
		return name
	}
	return namespace + "/" + name
}

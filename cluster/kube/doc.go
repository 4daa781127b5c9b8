// Package kube has nothing but go.mod, which says how programs of Kubernetes are built.
package kube

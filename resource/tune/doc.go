// Package tune holds the changes of the plugin tuning to links and sysctls, with the former values. Their record,
// resource.Tuned, is in package resource, because the packages of links need it to compare a link.
package tune

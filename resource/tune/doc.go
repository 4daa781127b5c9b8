// Package tune holds what plugin tuning changes of a link and of sysctls, and what it was before. What is remembered of
// it, resource.Tuned, is in package resource, because the packages of links compare a link with it.
package tune

// Package hostdev holds devices of the host that are lent to a container: how one is found, moved, known again whatever
// the container has done to it, and given back as it was.
package hostdev

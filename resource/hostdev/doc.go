// Package hostdev holds devices of the host that are lent to a container: how they are found, moved, recognized after
// changes in the container, and returned in their former state.
package hostdev

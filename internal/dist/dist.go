// Package dist tests what `make build` leaves behind: files that a node can be given in any of the usual
// ways, and that run there.
package dist

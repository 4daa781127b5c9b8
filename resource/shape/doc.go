// Package shape holds bandwidth limits: queueing disciplines, and the redirection of a link's incoming packets
// through an ifb.
package shape

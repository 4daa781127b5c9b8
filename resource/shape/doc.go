// Package shape holds limits of bandwidth: queueing disciplines, the redirection of what comes in by a link, and the
// ifb that it goes through.
package shape

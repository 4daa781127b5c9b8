// Package network holds what attachments of a network share and what is removed with the last of them: a bridge
// without ports. It imports the packages of links, addresses and rules.
package network

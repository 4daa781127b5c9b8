// Package network holds what the attachments of a network have together and what goes with the last of them: a bridge
// that has no port any more. It stands above the packages of links, addresses and rules.
package network

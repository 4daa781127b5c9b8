// Package network holds what a network has for its attachments together, above all rooms that know single attachments: the bridge that goes
// with its last port.
package network

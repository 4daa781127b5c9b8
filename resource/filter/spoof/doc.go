// Package spoof drops frames that a container sends under another MAC address than its own.
package spoof

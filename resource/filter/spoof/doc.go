// Package spoof drops frames that a container sends with another source MAC address than its own.
package spoof

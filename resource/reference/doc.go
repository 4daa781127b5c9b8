// Package reference holds objects that the reference plugins make and this program does not. DEL and GC find and
// remove them, and a handover makes them. The reference's iptables rules have the same names as those of the iptables
// backends in package filter.
package reference

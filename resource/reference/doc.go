// Package reference holds what the reference plugins make and we do not: how DEL and GC find and remove it, and how an
// attachment is handed over to them. What they make in iptables has the names of our own iptables backends, in package
// filter.
package reference

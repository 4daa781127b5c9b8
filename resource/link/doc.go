// Package link holds the links that attachments get, one file for each kind of link, named as in ip(8): veth pairs,
// macvlan, ipvlan, vlan, dummy and tap links. It also holds bridges with their ports and VLANs, and the masters of
// links. renamed.go decides which link in a container belongs to which attachment. Addresses and routes live in other
// packages.
package link

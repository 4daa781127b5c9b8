// Package forward makes the host forward packets from and to containers where rules of other programs would drop
// them. It finds out where an accept has an effect, in iptables or in firewalld, and adds it there. Our own tables
// need no accept; package policy decides what they drop.
package forward

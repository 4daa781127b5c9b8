// Package forward has the host forward what containers send and what is for them where other programs' rules have a say
// in it: it finds out where an accept counts, in iptables or in firewalld, and puts it there. Our own tables need no
// accept, and what they drop is package policy's.
package forward

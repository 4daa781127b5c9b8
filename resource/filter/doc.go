// Package filter holds what the packages below it share: the two nf_tables tables of this program, with their static
// chains, the names and types of all sets, and chains that attachments share. It finds elements by their owners, and
// writes, compares and removes them. It makes one transaction for a call or for a whole repair.
//
// Packages publish, masquerade, policy and spoof decide which elements an attachment has; they also have backends for
// iptables. Package forward has nothing in our tables. Package reference holds what the reference plugins left.
package filter

// Package filter is what the rooms below it have in common: our two tables of nf_tables, that is, their skeleton, the
// names and types of all sets, and chains that attachments share; how elements are found by their owners, written,
// compared and removed; one transaction of a call, and of a whole repair. Which elements an attachment has is said in
// the rooms: publish, masquerade, policy, spoof; those use iptables besides; forward has nothing in our tables. What
// the reference plugins left lives in package reference.
package filter

// Package filter holds what attachments have in the host's packet filter: published ports, masquerade, policies, the
// check of MAC addresses, and accepts of forwarded packets, in our tables of nf_tables, by iptables, by firewalld.
// Files nft*.go are our tables and whose each element is; ipt*.go say the same by iptables; forward*.go decide which of
// them counts on a host. What the reference plugins left lives in package reference.
package filter

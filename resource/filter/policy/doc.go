// Package policy keeps networks apart. Ingress decides who may send to the containers behind a link, by our nf_tables
// table or by iptables. FailClosed keeps the policies in force while the packet filter is flushed. IsolatedPort filters
// frames within a bridge. Package forward lets packets pass where other programs' rules would drop them.
package policy

// Package policy keeps networks apart: Ingress says who may send to the containers behind a link, by our nf_tables
// table or by iptables; Reference is an attachment's share in what a bridge has for all of them; FailClosed holds while
// the packet filter is flushed; IsolatedPort is for frames within a bridge. What lets packets pass where others have
// rules is package forward's.
package policy

// Package iptables is what the iptables backends of filter's rooms share: a lock, drafts of changes of one table, the
// names and comments of the reference plugins, and the records of whose addresses rules are for. What rules there are
// is said by the rooms, and the programs are executed by package kernel.
package iptables

// Package iptables holds what the iptables backends of the packages beside it share: a lock, drafts of changes of a
// table, the names and comments of the reference plugins, and records of the addresses that rules are for. Those
// packages define the rules. Package internal/kernel/xtables executes the programs.
package iptables

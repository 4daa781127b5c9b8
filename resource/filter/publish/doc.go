// Package publish makes ports of the host lead to containers: Ports in our nf_tables table, PortsIPTables in the chains
// of the reference. Here is who claims a port, which of several claims the maps lead to, what a packet has to fulfil,
// and which settings its path needs. How the table is drawn is package filter's; what leaves a network is package
// masquerade's.
package publish

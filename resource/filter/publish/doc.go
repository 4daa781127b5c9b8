// Package publish makes ports of the host lead to containers. Ports does so in our nf_tables table, PortsIPTables in
// the reference's chains. The package decides who claims a port, which of several claims the maps contain, what
// conditions a packet has to fulfil, and which sysctls its path needs. Package filter defines the table. Package
// masquerade translates what leaves a network.
package publish

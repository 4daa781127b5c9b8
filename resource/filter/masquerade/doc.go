// Package masquerade translates the source of packets that containers send out of their network to an address of the
// host. Sources does so in our nf_tables table, SourcesIPTables in the reference's chains. Package publish
// masquerades connections to published ports.
package masquerade

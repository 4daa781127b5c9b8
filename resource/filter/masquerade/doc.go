// Package masquerade gives what containers send out of their network an address of the host: Sources in our nf_tables
// table, SourcesIPTables in the chains of the reference. What comes back from a published port is masqueraded by
// package publish.
package masquerade

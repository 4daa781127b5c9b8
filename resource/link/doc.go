// Package link holds the links that attachments get, one file a kind of link, named as ip(8) names them: veth pairs,
// macvlan, ipvlan, vlan, dummy and tap links, the bridges that they are ports of with their VLANs, and the masters that
// they stand on. Which link in a container is whose is decided here, too (renamed.go). Addresses and routes on links
// are not this package's business.
package link

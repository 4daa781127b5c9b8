// Package addr holds what a link needs for IP: addresses, gateways, routes and routing rules, the probe that an
// address is free, and the announcement of a new address. Changes of routes by the plugin route live in package
// routing, which has its own RouteEntry.
package addr

// Package addr holds what makes a link speak IP: addresses, gateways, routes and routing rules, the probe that an
// address is free, and the announcement that it has come. What plugin route adds, changes and deletes lives in package
// routing, with a RouteEntry of its own.
package addr

// Package addr holds what makes a link speak IP: addresses, gateways, routes and routing rules, the probe that an address is free, and the
// announcement that it has come. What changes routes that others made lives in package routing.
package addr

// Package routing holds what changes how a namespace routes beyond the routes of one link: routing by the source
// address, VRFs, and the changes of routes, rules and neighbours that plugin route is asked for, all of which DEL takes
// back.
package routing

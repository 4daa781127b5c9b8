// Package routing holds resources that change a namespace's routing beyond the routes of one link: routing by source
// address, VRFs, and the changes of routes, rules and neighbours that the plugin route makes. DEL undoes all of them.
package routing

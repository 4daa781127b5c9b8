// Package route changes routes, policy routing rules and neighbours of a container's interface, as ip(8) does: add,
// replace, del and flush, in the order of the configuration. A route may have several next hops. The result contains
// the routes that are in force afterwards; a route with several next hops is in it once for each.
//
// The plugin remembers what it removes, with all attributes, also of other interfaces. DEL restores it while the
// container's namespace exists, and so does an ADD that fails. A route is not restored if another route has taken its
// place since, or if the interface cannot have it any more. CHECK compares, unless skipcheck is set.
//
// The keys of the route-override plugin have the same meaning, so a list needs only another type: flushroutes,
// flushgateway, delroutes, addroutes, delecmproutes, addecmproutes and skipcheck. They come before routes. The
// differences: a route that cannot be added is an error, not a line on stderr; gw in delroutes counts; a flush keeps
// the routes to the subnets of the interface's addresses and to their gateways; and DEL restores the earlier routes.
package route

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/routing"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the route plugin.
var Plugin = sdk.Chained("route", "changes routes, rules and neighbours of a container's interface", want,
	func(conf) []plan.Kind { return []plan.Kind{routing.ChangeKind()} })

type conf struct {
	Routes     []route     `json:"routes"`
	Rules      []rule      `json:"rules"`
	Neighbours []neighbour `json:"neighbours"`
	override

	Args struct {
		CNI override `json:"cni"`
	} `json:"args"`
}

// An override is what the route-override plugin has keys for.
type override struct {
	// First delete the interface's routes of both families in its table. The routes to the subnets of its addresses and
	// to their gateways stay. Default: false.
	FlushRoutes *bool `json:"flushroutes"`
	// Delete the default routes of the interface. Default: false.
	FlushGateway *bool `json:"flushgateway"`
	// Routes to delete. Only dst, gw, priority and table are compared.
	DelRoutes []spec.Route `json:"delroutes"`
	// Routes to add.
	AddRoutes []spec.Route `json:"addroutes"`
	// Routes with several next hops to delete.
	DelECMPRoutes []several `json:"delecmproutes"`
	// Routes with several next hops to add.
	AddECMPRoutes []several `json:"addecmproutes"`
	// Let CHECK compare nothing, because the container changes its routes itself. Default: false.
	SkipCheck *bool `json:"skipcheck"`

	keys overrideKeys
}

// overrideKeys are the paths of an override's lists, as the configuration spells them.
type overrideKeys struct{ del, add, delECMP, addECMP string }

// keys returns the paths of the lists that count: those of args.cni go first.
func (c conf) keys(r *sdk.Request) overrideKeys {
	path := func(key string, inArgs bool) string {
		if inArgs {
			return r.Written("args", "cni", key)
		}
		return r.Written(key)
	}
	args := c.Args.CNI
	return overrideKeys{
		del:     path("delroutes", args.DelRoutes != nil),
		add:     path("addroutes", args.AddRoutes != nil),
		delECMP: path("delecmproutes", args.DelECMPRoutes != nil),
		addECMP: path("addecmproutes", args.AddECMPRoutes != nil),
	}
}

// several is a route by several next hops, in the words of the route-override plugin.
type several struct {
	// Destination, as a subnet.
	Dst netip.Prefix `json:"dst"`
	// Addresses of the next hops, which have equal weight.
	GWs []netip.Addr `json:"gws"`
}

// over is o where it says something, else the other.
func (o override) over(other override) override {
	if o.FlushRoutes == nil {
		o.FlushRoutes = other.FlushRoutes
	}
	if o.FlushGateway == nil {
		o.FlushGateway = other.FlushGateway
	}
	if o.DelRoutes == nil {
		o.DelRoutes = other.DelRoutes
	}
	if o.AddRoutes == nil {
		o.AddRoutes = other.AddRoutes
	}
	if o.DelECMPRoutes == nil {
		o.DelECMPRoutes = other.DelECMPRoutes
	}
	if o.AddECMPRoutes == nil {
		o.AddECMPRoutes = other.AddECMPRoutes
	}
	if o.SkipCheck == nil {
		o.SkipCheck = other.SkipCheck
	}
	return o
}

// changes are the plan while it is made.
type changes struct {
	plan.Plan
	r         *sdk.Request
	unchecked bool
}

func (c *changes) add(key string, do routing.Verb, of routing.Subject) {
	c.Plan = append(c.Plan, routing.Change{Owner: c.r.Owner, Do: do, Of: of, Key: key, Unchecked: c.unchecked})
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	all := &changes{r: r}
	o := c.Args.CNI.over(c.override)
	o.keys = c.keys(r)
	all.unchecked = o.SkipCheck != nil && *o.SkipCheck
	if err := o.changes(all); err != nil {
		return answer, err
	}
	for i, rt := range c.Routes {
		if err := rt.change(at(r.Written("routes"), i), all); err != nil {
			return answer, err
		}
	}
	for i, ru := range c.Rules {
		if err := ru.change(at(r.Written("rules"), i), all); err != nil {
			return answer, err
		}
	}
	for i, n := range c.Neighbours {
		if err := n.change(at(r.Written("neighbours"), i), all); err != nil {
			return answer, err
		}
	}
	if len(all.Plan) == 0 {
		answer.Warn("routes, rules and neighbours are missing: the plugin changes nothing")
	}
	answer.Plan = all.Plan
	return answer, nil
}

// changes are what the keys of the route-override plugin ask for, in its order.
func (o override) changes(all *changes) error {
	link := all.r.IfName
	if o.FlushRoutes != nil && *o.FlushRoutes {
		all.add("flushroutes", routing.Flush, routing.RouteEntry{Link: link, V4: true, V6: true, Keep: all.gateways()})
	}
	if o.FlushGateway != nil && *o.FlushGateway {
		for _, dst := range defaults() {
			all.add("flushgateway", routing.Del, routing.RouteEntry{Link: link, Dst: dst})
		}
	}
	for i, rt := range o.DelRoutes {
		e, err := all.entry(at(o.keys.del, i), rt)
		if err != nil {
			return err
		}
		e.MTU, e.AdvMSS = 0, 0
		all.add(at(o.keys.del, i), routing.Del, e)
	}
	for i, rt := range o.AddRoutes {
		e, err := all.entry(at(o.keys.add, i), rt)
		if err == nil {
			err = all.way(at(o.keys.add, i), rt, &e)
		}
		if err != nil {
			return err
		}
		all.add(at(o.keys.add, i), routing.Add, e)
	}
	if err := all.several(o.keys.delECMP, routing.Del, o.DelECMPRoutes); err != nil {
		return err
	}
	return all.several(o.keys.addECMP, routing.Add, o.AddECMPRoutes)
}

func (c *changes) several(key string, do routing.Verb, list []several) error {
	for i, s := range list {
		e := routing.RouteEntry{Link: c.r.IfName, Dst: s.Dst}
		if !s.Dst.IsValid() {
			return bad("%s.dst: is missing: want a subnet, such as 192.0.2.0/24", at(key, i))
		}
		for j, gw := range s.GWs {
			if err := router(at(at(key, i)+".gws", j), gw, s.Dst); err != nil {
				return err
			}
			e.Hops = append(e.Hops, routing.Hop{Via: gw})
		}
		if do == routing.Add && len(e.Hops) == 0 {
			return bad("%s.gws: is missing: want the next hops, such as [\"192.0.2.1\", \"192.0.2.2\"]", at(key, i))
		}
		c.add(at(key, i), do, e)
	}
	return nil
}

// entry is a route of the specification's; the next hop counts where it names one.
func (c *changes) entry(key string, rt spec.Route) (e routing.RouteEntry, err error) {
	e = routing.RouteEntry{Link: c.r.IfName, Dst: rt.Dst.Masked(), Priority: rt.Priority, MTU: rt.MTU,
		AdvMSS: rt.AdvMSS}
	if !rt.Dst.IsValid() {
		return e, bad("%s.dst: is missing: want a subnet, such as 192.0.2.0/24", key)
	}
	if rt.Table != nil {
		e.Table = *rt.Table
	}
	if err := numbers(key, e); err != nil {
		return e, err
	}
	if rt.GW.IsValid() && !rt.GW.IsUnspecified() {
		e.Hops = []routing.Hop{{Via: rt.GW, OnLink: rt.Scope != nil && *rt.Scope == scopeLink}}
		err = router(key+".gw", rt.GW, rt.Dst)
	}
	return e, err
}

const scopeLink = 253

// way completes a route that names no next hop: it goes by the gateway of the address of its family (clause P26),
// unless it says that the destination is on the link.
func (c *changes) way(key string, rt spec.Route, e *routing.RouteEntry) error {
	onLink := rt.GW.IsValid() || rt.Scope != nil && *rt.Scope == scopeLink
	if len(e.Hops) > 0 || onLink || c.r.Prev == nil {
		return nil
	}
	for _, ip := range c.r.ContainerIPs() {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == rt.Dst.Addr().Is4() {
			e.Hops = []routing.Hop{{Via: ip.Gateway}}
			return nil
		}
	}
	return bad("%s: %v: has no next hop: no address of %s in prevResult has a gateway of that family; want gw, "+
		"or \"scope\": 253 if the destination is on the link", key, rt.Dst, c.r.IfName)
}

// gateways are the routers of the interface's addresses.
func (c *changes) gateways() (all []netip.Addr) {
	for _, ip := range c.r.ContainerIPs() {
		if ip.Gateway.IsValid() {
			all = append(all, ip.Gateway)
		}
	}
	return all
}

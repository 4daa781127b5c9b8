package conformance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

func addChecks() []Check {
	const dispatch = `ADD: create the interface defined by CNI_IFNAME inside the container at CNI_NETNS, or adjust the configuration of the interface defined by CNI_IFNAME inside the container at CNI_NETNS.`
	return []Check{
		{ID: "P9/name", Title: "ADD names the interface as CNI_IFNAME says, or fails",
			Sentence: `CNI_IFNAME: Name of the interface to create inside the container; if the plugin is unable to use this interface name it must return an error.`,
			Kinds:    makers(), run: otherName},
		{ID: "P10/existing", Title: "ADD fails where the container has an interface of that name, and leaves it alone",
			Sentence: `If an interface of the requested name already exists in the container, the CNI plugin MUST return with an error.`,
			Kinds:    makers(), run: existingInterface},
		{ID: "P11/failed", Title: "after a failed ADD nothing is left, and DEL succeeds",
			Sentence: "A delete must still be executed even if the add fails.",
			Kinds:    []Kind{Interface, Chained, Meta}, run: failedAdd},
		{ID: "P19/interfaces", Title: "two interfaces of one container come and go by themselves",
			Sentence: `A given container ID may be added to a specific network more than once only if each addition is done with a different interface name.`,
			Kinds:    []Kind{Interface, IPAM, Meta}, run: twoInterfaces},
		{ID: "P20/parallel", Title: "eight calls at once for different containers succeed",
			Sentence: `Plugins must handle being executed concurrently across different containers. If necessary, they must implement locking on shared resources (e.g. IPAM databases).`,
			Kinds:    everyPlugin(), run: inParallel},
		{ID: "P24/interfaces", Title: `the result lists the container's interface with CNI_NETNS, and the host's without`,
			Sentence: `sandbox: The isolation domain reference (e.g. path to network namespace) for the interface, or empty if on the host. For interfaces created inside the container, this should be the value passed via CNI_NETNS.`,
			Kinds:    makers(), from: spec.V030, run: listedInterfaces},
		{ID: "P24/addresses", Title: "each address of the result is on the interface that it refers to",
			Sentence: `interface (uint): the index into the interfaces list for a CNI Plugin Result indicating which interface this IP configuration should be applied to.`,
			Kinds:    makers(), from: spec.V030, run: listedAddresses},
		{ID: "P24/traffic", Title: "two containers of the network talk to each other by the addresses of their results",
			Sentence: `network refers to a group of endpoints that are uniquely addressable that can communicate amongst each other.`,
			Kinds:    makers(), run: containersTalk},
		{ID: "P25/metric", Title: "the routes of the result are in the container, with metric 0",
			Sentence: "routes: Routes created by this attachment.",
			Kinds:    makers(), from: spec.V030, run: listedRoutes},
		{ID: "P25/default", Title: "ADD succeeds where another network set the default route",
			Sentence: dispatch, Kinds: makers(), run: secondDefault},
		{ID: "P26/gateway", Title: "a route without gw goes by the gateway of the address",
			Sentence: "gw: The next hop address. If unset, a value in gateway in the ips array may be used.",
			Kinds:    makers(), run: impliedGateway},
		{ID: "P26/traffic", Title: "a container reaches the gateway of its address",
			Sentence: "gateway (string): the default gateway for this subnet, if one exists.",
			Kinds:    makers(), run: gatewayTalks},
		{ID: "C11/dns", Title: "the result has the dns of the IPAM plugin",
			Sentence: "The ips and dns items should be the same output as was returned by the IPAM plugin.",
			Kinds:    makers(), from: spec.V030, run: passedDNS},
	}
}

// link returns the link of a name in a namespace, or nil.
func link(path, name string) (*rtnl.Link, error) {
	return look(path, func(ns *kernel.NS) (*rtnl.Link, error) {
		l, err := rtnl.LinkByName(ns, name)
		if isNoLink(err) {
			return nil, nil
		}
		return l, err
	})
}

// needsAnyName ends a check of names where the plugin takes only one.
func (t *trial) needsAnyName() {
	applies(t.subject.IfName == "", "the plugin takes no other interface name than "+t.subject.IfName)
}

func otherName(t *trial) {
	t.needsAnyName()
	c := t.container("c1")
	c.ifName = "net7"
	if t.do("ADD", c).failed == nil {
		expect(must(link(c.netns, c.ifName)) != nil, "the interface net7 in the container", "none")
	}
}

func existingInterface(t *trial) {
	t.needsAnyName()
	c := t.container("c1")
	require(alter(c.netns, func(ns *kernel.NS) error {
		_, err := bridge(ns, c.ifName, netip.Prefix{})
		return err
	}))
	before := t.state(c)
	a := t.do("ADD", c)
	a.expect(a.failed != nil, "an error")
	require(unchanged("the ADD that fails", ofContainer(before), ofContainer(t.state(c))))
}

// failedAdd has ADD fail late: by the IPAM plugin where there is one, else for there is no such namespace.
func failedAdd(t *trial) {
	t.warm()
	c := t.container("c1")
	before := t.state(nil) // with the interface that the suite made for a chained plugin
	fault := env(func(call *invoke.Call) { call.Netns = "/run/netns/none" })
	if t.subject.addressed() {
		fault = failing("ADD", 111)
	}
	applies(t.do("ADD", c, fault).failed != nil,
		"the plugin does not look into the namespace, so its ADD does not fail")
	t.succeed("DEL after a failed ADD", "DEL", c)
	t.unchanged("DEL after a failed ADD", before, nil)
}

func twoInterfaces(t *trial) {
	t.needsAnyName()
	c := t.attached("c1")
	other := t.container("c2")
	other.id, other.netns, other.ifName = c.id, c.netns, "eth1"
	t.add(other)
	t.succeed("DEL of eth0", "DEL", c)
	if t.version.AtLeast(spec.V040) {
		t.succeed("CHECK of eth1 after the DEL of eth0", "CHECK", other)
	}
	t.succeed("DEL of eth1", "DEL", other)
}

func inParallel(t *trial) {
	const number = 8
	var all []*container
	for i := range number {
		all = append(all, t.container(fmt.Sprintf("c%d", i)))
	}
	answers, failed := make([]*answer, number), make([]error, number)
	var calls sync.WaitGroup
	for i, c := range all {
		calls.Go(func() {
			apart := *t
			failed[i] = ended(func() { apart.add(c) })
			answers[i] = apart.last
		})
	}
	calls.Wait()
	seen := map[netip.Prefix]string{}
	for i, c := range all {
		t.last = answers[i]
		require(failed[i])
		for _, ip := range c.result.IPs {
			other := seen[ip.Address]
			expect(other == "" || t.subject.Kind != IPAM || t.subject.Single, "an address for each container",
				"%s has %s, and so has %s", c.id, ip.Address, other)
			seen[ip.Address] = c.id
		}
	}
}

func listedInterfaces(t *trial) {
	c := t.attached("c1")
	i := slices.IndexFunc(c.result.Interfaces, func(i spec.Interface) bool { return i.Name == c.ifName })
	t.last.expect(i >= 0 && c.result.Interfaces[i].Sandbox == c.netns,
		"an interface "+c.ifName+" with sandbox "+c.netns)
	for _, i := range c.result.Interfaces {
		l, err := link(i.Sandbox, i.Name)
		expect(err == nil, "interfaces with no other sandbox than "+c.netns, "%v", err)
		expect(l != nil, "the interface "+i.Name+" of the result in "+cmp.Or(i.Sandbox, "the host"), "none")
		expect(i.MAC == "" || strings.EqualFold(i.MAC, l.MAC.String()),
			"the MAC of "+i.Name+" as the kernel has it, "+l.MAC.String(), "%s", i.MAC)
	}
}

package attach_test

import (
	"context"
	"fmt"
	"os"

	"github.com/fairlead-cni/fairlead/attach"
	fairlead "github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// A runtime that is Fairlead's plugins itself: it makes a namespace and keeps it, attaches it without executing
// anything, finds it in the cache, and takes everything back.
//
// The plugin directory has links to the runtime's own file, under the plugins' names; a file of another program there is
// executed, as ever. The runtime's main calls sdk.Serve where it is called by such a name, for other runtimes.
func Example_inProcess() {
	defer links("ptp", "host-local", "portmap")() // to this program, in /opt/cni/bin
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	ctx := context.Background()

	ns, err := attach.NewNetns() // for the processes of the container
	check(err)
	defer ns.Close()
	check(attach.BindNetns(ns, "/run/netns/web"))

	runtime := attach.Runtime{PluginDirs: []string{"/opt/cni/bin"}, Run: sdk.Here(fairlead.All(), nil), Stderr: os.Stderr}
	list, err := spec.ParseList([]byte(`{"cniVersion": "1.1.0", "name": "lan", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`))
	check(err)
	web := attach.Attachment{ContainerID: "web", Netns: "/run/netns/web", IfName: "eth0",
		Capabilities: attach.Capabilities{
			PortMappings: []attach.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}},
		}.Map()}
	result, err := runtime.Add(ctx, list, web)
	check(err)
	fmt.Println("attached", result.IPs[0].Address)

	// After a restart of the runtime, the cache knows what is attached, and by which list.
	cached, problems := runtime.List("lan")
	fmt.Println(len(cached), "in the cache,", len(problems), "problems:", cached[0].Owner())
	check(runtime.Check(ctx, cached[0].AttachedBy(list), web))

	// What no container has any more goes: here, nothing is valid.
	check(runtime.GC(ctx, list, []spec.Attachment{}))
	cached, _ = runtime.List("lan")
	fmt.Println(len(cached), "in the cache")
	check(attach.RemoveNetns("/run/netns/web"))
	// Output:
	// attached 10.1.2.2/24
	// 1 in the cache, 0 problems: lan/web/eth0
	// 0 in the cache
}

func links(types ...string) (remove func()) {
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll("/opt/cni/bin", 0o755)
	}
	for _, typ := range types {
		if err == nil {
			err = os.Symlink(self, "/opt/cni/bin/"+typ)
		}
	}
	if err != nil {
		panic(err)
	}
	return func() { _ = os.RemoveAll("/opt/cni/bin") }
}

package attach_test

import (
	"context"
	"fmt"
	"os"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/spec"
)

// Attach a container to a network, look what it got, and detach it.
func Example() {
	defer furnish()() // puts the configuration, the plugin and the namespace there

	runtime := attach.Runtime{PluginDirs: []string{"/opt/cni/bin"}}
	list, err := spec.Load("/etc/cni/net.d", "lan")
	if err != nil {
		panic(err)
	}
	web := attach.Attachment{ContainerID: "web", Netns: "/run/netns/example", IfName: "eth0"}
	result, err := runtime.Add(context.Background(), list, web)
	if err != nil {
		panic(err)
	}
	fmt.Println(result.IPs[0].Address)
	if err := runtime.Del(context.Background(), list, web); err != nil {
		panic(err)
	}
	// Output: 10.1.2.3/24
}

func furnish() (remove func()) {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	self, err := os.Executable()
	check(err)
	check(os.MkdirAll("/opt/cni/bin", 0o755))
	check(os.MkdirAll("/etc/cni/net.d", 0o755))
	check(os.Symlink(self, "/opt/cni/bin/bridge"))
	check(os.WriteFile("/etc/cni/net.d/10-lan.conflist",
		[]byte(`{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge"}]}`), 0o644))
	check(nstest.MakeNS("/run/netns/example"))
	return func() {
		check(nstest.RemoveNS("/run/netns/example"))
		check(os.Remove("/opt/cni/bin/bridge"))
	}
}

package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// An obstacle is somebody else's packet filter that forwarded packets pass, and how to let a bridge's through.
type obstacle struct{ what, remedy string }

// obstacles are the chains that may drop what the bridge forwards: those at the forward hook that drop what no
// rule accepts, or have rules. An accept of ours would not help: a packet has to be accepted by every base
// chain. The rules of legacy iptables cannot be seen from nf_tables, so that it is in use is all that is known.
func obstacles(bridge string) ([]obstacle, error) {
	host, err := kernel.Open("")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	nft, err := host.NFT()
	if err != nil {
		return nil, err
	}
	chains, err := nft.BaseChains()
	if err != nil {
		return nil, err
	}
	var found []obstacle
	for _, c := range chains {
		routed := c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET
		if !routed || c.Hook != unix.NF_INET_FORWARD || c.Table == ownTable || !c.Drops && c.Rules == 0 {
			continue
		}
		policy := "accept"
		if c.Drops {
			policy = "drop"
		}
		found = append(found, obstacle{
			fmt.Sprintf("nft chain %s (policy %s, %d rules)", c, policy, c.Rules),
			fmt.Sprintf("nft insert rule %s iifname %s accept; nft insert rule %s oifname %s accept", c, bridge, c, bridge),
		})
	}
	for _, legacy := range []struct{ names, program string }{
		{"/proc/net/ip_tables_names", "iptables-legacy"}, {"/proc/net/ip6_tables_names", "ip6tables-legacy"},
	} {
		if names, err := os.ReadFile(legacy.names); err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
			found = append(found, obstacle{
				"the FORWARD chain of " + legacy.program,
				fmt.Sprintf("%s -I FORWARD -i %s -j ACCEPT; %s -I FORWARD -o %s -j ACCEPT", legacy.program, bridge, legacy.program, bridge),
			})
		}
	}
	return found, nil
}

// ownTable is the name of the tables that our plugins make.
const ownTable = "fairlead"

// noteObstacles says which of them stand in the default network's way.
func (a *app) noteObstacles() {
	found, err := obstacles(defaultBridge)
	if err != nil {
		return // where nf_tables cannot be read, there is nothing to be known
	}
	for _, o := range found {
		a.note("%s may drop the packets of %s; if so:\n  %s", o.what, defaultBridge, o.remedy)
	}
}

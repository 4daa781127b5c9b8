package doctor

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
)

// code returns a command as Markdown marks it; a sentence stays as it is.
func code(text string) string {
	if text == advice.Remakes || strings.Contains(text, "`") || strings.HasPrefix(text, "(depends") {
		return text
	}
	return "`" + text + "`"
}

// Page returns docs/doctor.md: how to use doctor, and an entry for each kind of finding.
func Page() []byte {
	b := bytes.NewBufferString(`<!-- Made by "make generate" from the tables of cli/doctor. Do not edit. -->
# doctor: findings and how to correct them

Find out why a container has no network:

` + "```" + `
fairlead doctor                          # all networks and containers of this host
fairlead doctor web                      # one container, and what concerns it; probes from inside
fairlead doctor web --to 192.0.2.1:443   # the same, and whether it reaches that address
fairlead doctor -o json                  # the same as a document, for programs
` + "```" + `

The command looks at the host, the networks and the containers. It names each cause once, with the affected containers. ` + "`fix`" + ` is the command
that corrects it; tests execute each. ` + "`look`" + ` is what to look at or to change by hand, where no command can correct the cause. Doctor
changes nothing. [Find out why a container has no network](howto/no-network.md) shows it step by step.

CONTAINER is the ID of a container or its beginning, the name or path of its network namespace, ` + "`NET/ID`" + `, or a pod as ` + "`NAMESPACE/NAME`" + `.
` + "`fairlead inspect CONTAINER`" + ` shows everything that the container has.

| exit status | meaning |
|---|---|
| 0 | no fault; there may be warnings |
| 3 | doctor found at least one fault |
| 1 | doctor found no fault, but could not see something, which it names. Most of that needs root |
| 4 | no attachment belongs to the container that was named |

## Which packets does doctor send?

Without a name and without ` + "`--probe`" + `, none. If you name a container, or use ` + "`--probe`" + ` for all containers, doctor sends probes from inside:

- It asks the gateway, the name servers and the address of ` + "`--to`" + `.
- It asks by ARP whether another host has an IPv4 address of the container.
- It sends packets of the size of the container's MTU to the address of ` + "`--to`" + `, or else to the router of the host's default route. It reports if
  only small packets are answered.

A probe waits for up to four seconds. After half a minute doctor starts no more probes, and says so.

## What does doctor not see?

- **Consequences.** Doctor leaves out what follows from another finding. For example, a missing bridge has no address and no ports. Below,
  "not beside" names the findings that another one is left out for.
- **Other plugins.** Doctor compares attachments of other plugins with the answer of their ADD. It knows little of their rules.
- **Other packet filters.** Doctor reads their rules but sends no packet to test them. ` + "`foreign-filter-drops`" + ` names the chain and the rule that would
  drop a packet, also of Docker, ufw, firewalld and kube-proxy. Doctor does not read BPF programs. A filter at the host's input hook does not see
  packets to a published port, because the host forwards them.
- **Published ports.** ` + "`published-port-diverted`" + ` names the rule that matches the packets before Fairlead's rule. Doctor leaves out ports of the
  reference's plugin portmap.
- **CNI versions of runtimes.** Doctor knows them for containerd, CRI-O and podman, from the list of Debian's packages or from the program
  itself. It knows podman's only if podman is set to CNI.

`)
	titles := map[string]string{OnHost: "On the host", onNetwork: "Of networks", onContainer: "Of containers"}
	section := ""
	for _, k := range FindingKinds() {
		if k.section != section {
			section = k.section
			fmt.Fprintf(b, "## %s\n\n", titles[section])
		}
		severity := "Fault"
		if k.Warning {
			severity = "Warning"
		}
		fmt.Fprintf(b, "### %s\n\n%s: %s.\n\n%s\n\n", k.ID, severity, k.What, k.Why)
		if len(k.causes) > 0 {
			var names []string
			for cause := range k.causes {
				names = append(names, "`"+string(cause)+"`")
			}
			slices.Sort(names)
			fmt.Fprintf(b, "Not beside: %s.\n\n", strings.Join(names, ", "))
		}
		for _, advised := range []struct{ word, text string }{{"Fix", k.Fix}, {"Look", k.Look}} {
			if advised.text != "" {
				fmt.Fprintf(b, "%s: %s\n\n", advised.word, code(advised.text))
			}
		}
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n')
}

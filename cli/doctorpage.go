package cli

import (
	"bytes"
	"fmt"
)

// DoctorPage is docs/doctor.md: how to use doctor, and an entry for each of its findings.
func DoctorPage() []byte {
	b := bytes.NewBufferString(`<!-- Made by "make generate" from cli/doctorkinds.go. Do not edit. -->
# Why has this container no network?

` + "`fairlead doctor`" + ` answers. It looks at the host, at the networks and at the containers.
It names each cause once, with the containers that it hits and the command that mends it. It changes nothing.

` + "```" + `
fairlead doctor                          # all networks and containers of this host
fairlead doctor web                      # one container, and what concerns it; probes from inside
fairlead doctor web --to 192.0.2.1:443   # the same, and whether it reaches that address
fairlead doctor -o json                  # the same as a document, for programs
` + "```" + `

CONTAINER is the ID of a container or its beginning, the name or path of its network namespace,
` + "`NET/ID`" + `, or a pod as ` + "`NAMESPACE/NAME`" + `. ` + "`fairlead inspect CONTAINER`" + ` shows
all that it has. Doctor probes a
named container from inside: its gateway, its name servers and the address of ` + "`--to`" + `. It asks by ARP
whether somebody else has an IPv4 address of the container. It sends packets of the size of the container's MTU to the address
of ` + "`--to`" + `, else to the router of the host's default route, and says if only small ones are answered.
` + "`--probe`" + ` does so with all containers. A probe waits for up to four seconds. After half a
minute doctor begins no more of them, and says so.
Without a name and without ` + "`--probe`" + ` doctor sends no packet.

| exit status | it means |
|---|---|
| 0 | all is in order, or there are only warnings |
| 3 | doctor found at least one fault |
| 1 | doctor found no fault, and could not see something: it says what. Most of that needs root |
| 4 | no attachment belongs to the container that was named |

Doctor leaves out what follows from another finding: a bridge that is gone takes its address and its ports with it.
It compares attachments that other plugins made with what their ADD answered; of their rules it knows little.

It reads the packet filters of other programs, and tries nothing: ` + "`foreign-filter-drops`" + ` names the chain
and the rule that would drop a packet, also of Docker, ufw, firewalld and kube-proxy. It does not read programs of BPF.
A filter at the host's input hook does not see packets to a published port: the host forwards these.
` + "`published-port-diverted`" + ` names the rule that takes them before Fairlead's does. What the reference's plugin portmap
publishes is left out.

Which versions of CNI a program takes is known of containerd, CRI-O and podman, from the list of Debian's packages or from the
program itself; of podman only where it is set to CNI.

`)
	titles := map[string]string{onHost: "On the host", onNetwork: "Of networks", onContainer: "Of containers"}
	section := ""
	for _, k := range findingKinds() {
		if k.section != section {
			section = k.section
			fmt.Fprintf(b, "## %s\n\n", titles[section])
		}
		severity := "Fault"
		if k.warning {
			severity = "Warning"
		}
		mend := "`" + k.mend + "`"
		if k.mend == remakes || k.mend[0] == '(' {
			mend = k.mend
		}
		fmt.Fprintf(b, "### %s\n\n%s: %s.\n\n%s\n\nMend: %s\n\n", k.id, severity, k.what, k.why, mend)
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n')
}

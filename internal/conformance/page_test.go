package conformance

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// page is docs/conformance.md but for its table and its example.
const page = `# Conformance

Test CNI plugins and runtimes of any vendor against the CNI specification, versions 0.1.0 to 1.1.0. Each check is named by a
[clause](clauses.md), and its result names the sentence of the specification, what was expected, what was seen, and the command that
repeats it.

~~~
fairlead-conformance --plugin /opt/cni/bin/bridge            # a plugin
fairlead-conformance --plugin ./mine --profile mine.json     # a plugin with a configuration of its own
fairlead-conformance --runtime ./myruntime                   # a runtime
fairlead-conformance --list                                  # all checks, with the sentences of the specification
~~~

A release has the program in a package and an archive of its own ([install](install.md)). %[1]smake build%[1]s makes it in %[1]sbin/%[1]s, and
%[1]sgo install github.com/fairlead-cni/fairlead/cmd/fairlead-conformance@latest%[1]s does so elsewhere. %[1]sfairlead conformance%[1]s runs it. It needs root, or user namespaces. Each check runs in a throw-away host: network,
process and mount namespaces of its own, with empty %[1]s/run%[1]s, %[1]s/var/lib/cni%[1]s, %[1]s/etc/cni%[1]s and %[1]s/opt/cni%[1]s. So the machine does not change,
and nothing that a plugin starts stays, also if the suite is killed. An ordinary user in a container may not be allowed a %[1]s/proc%[1]s of its own. Then the hosts share the
processes of the machine, and what plugins start stays.

## Read a result

This is what the suite says of a plugin with one fault:

~~~
%[2]s~~~

%[1]scall%[1]s is the call that was answered wrongly, and %[1]srepeat%[1]s makes the whole check again. %[1]s-v%[1]s also prints what passed, and why
a check does not apply. %[1]s-o json%[1]s, %[1]s-o junit%[1]s and %[1]s-o tap%[1]s are for programs.

| exit status | meaning |
|---|---|
| 0 | all checks passed, or do not apply |
| 1 | a check failed |
| 2 | a check could not be made, or nothing could be tested |

## Test a plugin

The suite knows the usual plugins (bridge, ptp, macvlan, host-local, portmap and others). Of another plugin it finds out the kind by what an ADD
does: an *IPAM* plugin gives addresses and no interface, an *interface* plugin makes the interface, a *chained* plugin accepts one that another
plugin made. The suite brings its own IPAM plugin, and makes the interface for a chained plugin, so it needs no other plugin.

A profile says how a plugin is configured that needs keys:

~~~
{"plugins": {"mine": {
  "kind": "interface",
  "conf": {"master": "lan0", "ipam": "$ipam"},
  "host": [["ip", "link", "add", "lan0", "up", "type", "dummy"]],
  "reaches": ["containers"],
  "breaks": [{"name": "the rule is gone", "run": ["nft", "flush", "ruleset"]}]
}}}
~~~

| key | meaning |
|---|---|
| %[1]skind%[1]s | %[1]sinterface%[1]s, %[1]schained%[1]s, %[1]sipam%[1]s, or %[1]smeta%[1]s for a plugin that runs others. Recognised if it is left out. |
| %[1]sconf%[1]s | The plugin's object in a list, without %[1]stype%[1]s. The value %[1]s"$ipam"%[1]s stands for the suite's IPAM plugin. Of an IPAM plugin, it is the object %[1]sipam%[1]s. |
| %[1]sruntimeConfig%[1]s | What a runtime would provide. The suite tests %[1]smac%[1]s and %[1]sportMappings%[1]s of it. |
| %[1]scapabilities%[1]s | Further keys of runtimeConfig that the plugin acts on. The suite has values for each, good and malformed. |
| %[1]sadopts%[1]s | True if the plugin attaches an interface of the host that is in prevResult, and makes no pair then. |
| %[1]shost%[1]s | Commands that prepare the host, each a list of words. |
| %[1]sreaches%[1]s | Whom a container reaches: %[1]scontainers%[1]s of the network, the %[1]sgateway%[1]s. The suite sends packets. |
| %[1]sbreaks%[1]s | Changes that CHECK has to find, each with %[1]sname%[1]s, %[1]srun%[1]s and, in the container, %[1]s"in": "container"%[1]s. |
| %[1]sifName%[1]s | The only interface name that the plugin takes. |
| %[1]ssingle%[1]s | True if the host has room for one attachment only. |
| %[1]slayer2%[1]s | True if the plugin can do without addresses. |
| %[1]sskip%[1]s | Checks that are not made, by clause or ID, with the reason. |

## Test a runtime

The suite runs %[1]sCMD VERB NETWORK NETNS%[1]s, where CMD is the value of %[1]s--runtime%[1]s and VERB is %[1]sadd%[1]s, %[1]scheck%[1]s, %[1]sdel%[1]s, %[1]sgc%[1]s or %[1]sstatus%[1]s.
This is the interface of cnitool. A script of a few lines adapts another runtime. CMD has to:

- find the network in %[1]sNETCONFPATH%[1]s and the plugins in %[1]sCNI_PATH%[1]s
- use %[1]sCNI_IFNAME%[1]s, %[1]sCNI_ARGS%[1]s and, for capabilities, %[1]sCAP_ARGS%[1]s
- choose a container ID by NETNS, always the same
- print the result of %[1]sadd%[1]s on stdout, and exit non-zero with the error on stdout or stderr

The plugins of the list are the suite's own. They record how they were called, and fail where a check wants them to.

## Results

These are the results of [Fairlead](../README.md), of the reference's plugins 1.1.1 as Debian 12 packages them, of cnitool 1.3.1, and of a
[plugin in 30 lines of shell](../internal/conformance/testdata/mock). The plugins are bridge, host-local, portmap and tuning, and of Fairlead also chain,
which runs a list. A dash stands where a check applies to none of them. Version 1.1.1 of the plugins is older than 1.1.0
of the specification, so GC and STATUS do not apply. CI makes these runs, and a test compares them with this page.

| check | | Fairlead | reference plugins | cnitool | shell |
|---|---|---|---|---|---|
%[3]s
## How it works

A check that cannot fail proves nothing. For each check there is a small plugin or runtime that conforms but for one fault
([model_test.go](../internal/conformance/model_test.go)), and a test shows that the check finds it. Without a fault, the plugin passes all checks.
Where a fault breaks other rules, too, [also.txt](../internal/conformance/testdata/tables/also.txt) names their checks; no others fail.
What has no check: that %[1]sinfinibandGUID%[1]s, %[1]sdeviceID%[1]s, %[1]saliases%[1]s and %[1]scgroupPath%[1]s do what they say, which takes hardware, a name server or a
cgroup. The suite tests that a runtime passes them on, and that a plugin that acts on them refuses a malformed value.

What a plugin leaves on the host is seen by links, addresses, routes, rules of nf_tables and files of state, before ADD and after DEL or GC.

Generated from the runs by %[1]sgo test ./internal/conformance -update%[1]s: do not edit.
`

// docs/conformance.md is what the tables of the runs say.
func TestPage(t *testing.T) {
	var example bytes.Buffer
	i := 1 // V2/echo
	c := Checks()[i]
	report := brokenRun(t, c, []string{c.ID})
	dir := filepath.Dir(report.Subject.Path)
	report.Subject.Type, report.Outcomes[0].Repeat = "mine", "fairlead-conformance --only "+c.ID+" --plugin ./mine"
	if err := people(&example, []Report{report}, false); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(dir+"/"+brokenAs(c), "/src/mine", dir, "/src").Replace(example.String())

	all := tables(t)
	var rows strings.Builder
	for _, c := range Checks() {
		fmt.Fprintf(&rows, "| %s | %s |", c.ID, c.Title)
		for _, name := range []string{"fairlead", "debian", "cnitool", "mock"} {
			fmt.Fprintf(&rows, " %s |", cell(all[name], c.ID))
		}
		rows.WriteString("\n")
	}
	got := strings.ReplaceAll(fmt.Sprintf(page, "`", strings.TrimRight(text, "\n")+"\n", rows.String()), "~~~", "```")
	const file = "../../docs/conformance.md"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != got {
		t.Errorf("%s is not as the runs say (%v): go test ./conformance -update", file, err)
	}
}

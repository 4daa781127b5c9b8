package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A commandLine is the processor time of a command beside that many attachments, and of what it starts.
type commandLine struct {
	Command   string
	Count     int
	Processor time.Duration
}

// wayOut is what the host has so that doctor finds nothing.
const wayOut = uplink + "; ip addr add 192.0.2.2/24 dev ens3; ip route add default via 192.0.2.1"

// commandsMeasured are what people call to look at a host. NETNS is the namespace of one container.
func commandsMeasured() []string {
	return []string{"ls", "inspect NETNS", "check", "doctor", "doctor NETNS", "status", "graph", "metrics",
		"support-bundle --mask -o /run/bundle.tar.gz"}
}

// measureCommands attaches that many containers, and measures each command.
func measureCommands(o options, c benchCase) (lines []commandLine, err error) {
	a, err := o.onOwnHost(command, order{Case: c.number(), Command: o.commanded})
	if err != nil {
		return nil, err
	}
	for _, run := range commandsMeasured() {
		lines = append(lines, commandLine{run, o.commanded, a.Took[run].Processor})
	}
	return lines, nil
}

// command attaches that many containers as a runtime does, and runs each command once.
func (h host) command(count int) (ans answer, err error) {
	if out, err := exec.Command("sh", "-ec", wayOut).CombinedOutput(); err != nil {
		return ans, fmt.Errorf("%s: %w: %s", wayOut, err, out)
	}
	if err := calmly(func() error { return h.attachByCommand(count) }); err != nil {
		return ans, err
	}
	ans.Took = map[string]cost{}
	for _, run := range commandsMeasured() {
		args := strings.Fields(strings.ReplaceAll(run, "NETNS", netnsByCommand(count/2)))
		_, took, err := spawn(h.program(), []string{"CNI_PATH=" + h.dir}, nil, false, args...)
		if err != nil {
			return ans, err
		}
		ans.Took[run] = took
		fmt.Fprintf(os.Stderr, "%s beside %d attachments: %.2f s of a processor, %.2f s\n", run, count,
			took.Processor.Seconds(), took.Time.Seconds())
	}
	return ans, nil
}

// program is the command that `make build` puts beside the plugins.
func (h host) program() string { return filepath.Join(h.dir, "..", "fairlead") }

// attachByCommand writes the network's file, and attaches that many containers, each in a namespace of its own.
func (h host) attachByCommand(count int) error {
	const dir = "/etc/cni/net.d"
	doc, err := json.Marshal(map[string]any{"cniVersion": cniVersion, "cniVersions": []string{cniVersion, gcVersion},
		"name": "bench", "plugins": h.c.Plugins})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/bench.conflist", doc, 0o644)); err != nil {
		return err
	}
	for i := range count {
		if err := nstest.MakeNS(netnsByCommand(i)); err != nil {
			return err
		}
		_, _, err := spawn(h.program(), []string{"CNI_PATH=" + h.dir}, nil, false, "add", "bench", netnsByCommand(i))
		if err != nil {
			return err
		}
	}
	return nil
}

func netnsByCommand(i int) string { return fmt.Sprint("/run/netns/commanded", i) }

func (r report) commandRows() (head []string, rows [][]string) {
	head = []string{"command", "attachments", "seconds of a processor"}
	for _, l := range r.Commands {
		rows = append(rows, []string{"fairlead " + l.Command, fmt.Sprint(l.Count),
			fmt.Sprintf("%.2f", l.Processor.Seconds())})
	}
	return head, rows
}

package demo

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
)

// picture prints what was made.
func (d *demo) picture(took time.Duration) {
	texts := func(ps []netip.Prefix) string {
		var s []string
		for _, p := range ps {
			s = append(s, p.String())
		}
		return strings.Join(s, "  ")
	}
	root := &term.Tree{Text: "host " + d.Dim(fmt.Sprintf("(made in %s)", round(took)))}
	bridges := map[string]*term.Tree{}
	for _, b := range []string{netconf.DefaultBridge, outsideBridge} {
		addrs, _ := bridgeAddrs(b)
		bridges[b] = root.Add("%s  %s", d.Bold(b), texts(addrs))
	}
	for _, m := range d.members {
		at, note := bridges[netconf.DefaultBridge], term.Shown("")
		switch m.name {
		case "web":
			note = "  " + d.Dim("port 8080 of the host is its port 80")
		case "neighbour":
			at = bridges[outsideBridge]
		}
		at.Add("%-9s eth0  %s%s", m.name, texts(m.addrs), note)
	}
	if !d.JSON() {
		fmt.Fprintln(d.Stdout)
		root.Print(d.Stdout, d.Style)
		fmt.Fprintln(d.Stdout)
	}
}

// table prints the answers.
func (d *demo) table() {
	t := term.Table{{"FROM", "FETCHES", "", "SEEN AS", "TOOK", ""}}
	for _, f := range d.answers {
		result := d.Good("ok")
		if f.bad() != "" {
			result = d.Bad("FAILED ") + term.Printable(f.bad())
		}
		t = append(t, []any{f.From, f.URL, d.Dim(f.Way), f.Seen, round(f.Took).String(), result})
	}
	if !d.JSON() {
		t.Print(d.Stdout, d.Style)
	}
}

// bad returns what is wrong with an answer, or "".
func (f demoAnswer) bad() string {
	switch {
	case f.Error != "":
		return f.Error
	case f.Server != "web":
		return f.Server + " answered"
	}
	return ""
}

// round rounds a time for people.
func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// tally is a row of what existed before, during and after the demo.
type tally struct {
	What   string `json:"what"`
	Before int    `json:"before"`
	During int    `json:"during"`
	After  int    `json:"after"`
}

func tallies(before, during, after hostCounts) []tally {
	return []tally{
		{"links, except bridges", before.links, during.links, after.links},
		{"network namespaces", before.netns, during.netns, after.netns},
		{"nft elements", before.elements, during.elements, after.elements},
		{"leases", before.leases, during.leases, after.leases},
		{"attachments", before.attachments, during.attachments, after.attachments},
		{"runs", before.runs, during.runs, after.runs},
	}
}

// verdict prints what is left, and fails if anything went wrong.
func (d *demo) verdict(before, during, after hostCounts, took time.Duration) error {
	var errs []error
	for _, f := range d.answers {
		if f.bad() != "" {
			errs = append(errs, fmt.Errorf("%s did not get %s: %s", f.From, f.URL, f.bad()))
		}
	}
	rows := tallies(before, during, after)
	t := term.Table{{"", "BEFORE", "MEANWHILE", "AFTER"}}
	for _, r := range rows {
		left := term.Sprintf("%d", r.After)
		if r.After != r.Before {
			errs = append(errs, fmt.Errorf("%s: %d before and %d after", r.What, r.Before, r.After))
			left = d.Bad(string(left))
		}
		t = append(t, []any{r.What, r.Before, r.During, left})
	}
	there := func(n string) bool { return slices.Contains(before.names, n) }
	if extra := slices.DeleteFunc(slices.Clone(after.names), there); len(extra) > 0 {
		errs = append(errs, fmt.Errorf("left: %s", strings.Join(extra, ", ")))
	}
	if d.JSON() {
		doc := struct {
			OK      bool         `json:"ok"`
			Fetches []demoAnswer `json:"fetches"`
			Counts  []tally      `json:"counts"`
		}{len(errs) == 0, d.answers, rows}
		return errors.Join(append(errs, d.PrintJSON(doc))...)
	}
	fmt.Fprintf(d.Stdout, "\nRemoved in %s:\n", round(took))
	t.Print(d.Stdout, d.Style)
	fmt.Fprintf(d.Stdout, "%s\n\n", d.Dim("The bridges are shared: they stay, empty, for the next container."))
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	fmt.Fprintf(d.Stdout, "%s\n", d.Good(fmt.Sprintf("All %d fetches succeeded, and nothing is left.", len(d.answers))))
	return nil
}

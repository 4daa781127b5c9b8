package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
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
	root := &tree{text: "host " + d.dim(fmt.Sprintf("(made in %s)", round(took)))}
	bridges := map[string]*tree{}
	for _, b := range []string{defaultBridge, outsideBridge} {
		addrs, _ := bridgeAddrs(b)
		bridges[b] = root.add("%s  %s", d.bold(b), texts(addrs))
	}
	for _, m := range d.members {
		at, note := bridges[defaultBridge], shown("")
		switch m.name {
		case "web":
			note = "  " + d.dim("port 8080 of the host is its port 80")
		case "neighbour":
			at = bridges[outsideBridge]
		}
		at.add("%-9s eth0  %s%s", m.name, texts(m.addrs), note)
	}
	if !d.json() {
		fmt.Fprintln(d.stdout)
		root.print(d.stdout, d.style)
		fmt.Fprintln(d.stdout)
	}
}

// table prints the answers.
func (d *demo) table() {
	t := table{{"FROM", "FETCHES", "", "SEEN AS", "TOOK", ""}}
	for _, f := range d.answers {
		result := d.good("ok")
		if f.bad() != "" {
			result = d.bad("FAILED ") + printable(f.bad())
		}
		t = append(t, []any{f.From, f.URL, d.dim(f.Way), f.Seen, round(f.Took).String(), result})
	}
	if !d.json() {
		t.print(d.stdout, d.style)
	}
}

// bad is what is wrong with an answer.
func (f demoAnswer) bad() string {
	switch {
	case f.Error != "":
		return f.Error
	case f.Server != "web":
		return f.Server + " answered"
	}
	return ""
}

// round cuts a time down to what a person reads.
func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// A tally is a row of what was there before, meanwhile and after.
type tally struct {
	What   string `json:"what"`
	Before int    `json:"before"`
	During int    `json:"during"`
	After  int    `json:"after"`
}

func tallies(before, during, after hostCounts) []tally {
	return []tally{
		{"links, beside the bridges", before.links, during.links, after.links},
		{"network namespaces", before.netns, during.netns, after.netns},
		{"nft elements", before.elements, during.elements, after.elements},
		{"leases", before.leases, during.leases, after.leases},
		{"attachments", before.attachments, during.attachments, after.attachments},
		{"runs", before.runs, during.runs, after.runs},
	}
}

// verdict says what is left, and whether all went well.
func (d *demo) verdict(before, during, after hostCounts, took time.Duration) error {
	var errs []error
	for _, f := range d.answers {
		if f.bad() != "" {
			errs = append(errs, fmt.Errorf("%s did not get %s: %s", f.From, f.URL, f.bad()))
		}
	}
	rows := tallies(before, during, after)
	t := table{{"", "BEFORE", "MEANWHILE", "AFTER"}}
	for _, r := range rows {
		left := sprintf("%d", r.After)
		if r.After != r.Before {
			errs = append(errs, fmt.Errorf("%s: %d before and %d after", r.What, r.Before, r.After))
			left = d.bad(string(left))
		}
		t = append(t, []any{r.What, r.Before, r.During, left})
	}
	there := func(n string) bool { return slices.Contains(before.names, n) }
	if extra := slices.DeleteFunc(slices.Clone(after.names), there); len(extra) > 0 {
		errs = append(errs, fmt.Errorf("left: %s", strings.Join(extra, ", ")))
	}
	if d.json() {
		doc := struct {
			OK      bool         `json:"ok"`
			Fetches []demoAnswer `json:"fetches"`
			Counts  []tally      `json:"counts"`
		}{len(errs) == 0, d.answers, rows}
		return errors.Join(append(errs, printJSON(d.stdout, doc))...)
	}
	fmt.Fprintf(d.stdout, "\nTaken down in %s:\n", round(took))
	t.print(d.stdout, d.style)
	fmt.Fprintf(d.stdout, "%s\n\n", d.dim("The bridges are shared: they stay, empty, for the next container."))
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	fmt.Fprintf(d.stdout, "%s\n", d.good(fmt.Sprintf("All %d fetches succeeded, and nothing is left.", len(d.answers))))
	return nil
}

// Command floor does the least that the kernel asks for the work of the list bridge, portmap, firewall and tuning: one
// process, no configuration, no question that has an answer already. Package bench compares what plugins take with it.
//
// CNI_COMMAND is ADD, DEL or GC, CNI_NETNS and CNI_IFNAME as ever, and CNI_ARGS the number of the container and the
// parts: "7 bridge host-local ipMasq portmap firewall tuning". GC takes away the containers of all numbers from
// CNI_CONTAINERID up to that one. The bridge and the tables stand already: package bench makes them.
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The names that package bench's host has for the floor.
const (
	bridgeName = "bench0"
	leases     = "/var/lib/cni/networks/floor/"
	group      = 777 // of the host-side links: GC removes them by it
)

// A job is one call.
type job struct {
	number  int
	parts   map[string]bool
	host    *conn // rtnetlink on the host
	filter  *conn // nf_tables on the host
	verb    string
	ifName  string
	netns   int
	address [4]byte
}

func main() {
	if err := run(); err != nil {
		fmt.Printf("{\"code\": 999, \"msg\": %q}\n", err)
		os.Exit(1)
	}
}

func run() error {
	j := job{verb: os.Getenv("CNI_COMMAND"), ifName: os.Getenv("CNI_IFNAME"), parts: map[string]bool{}}
	args := strings.Fields(os.Getenv("CNI_ARGS"))
	number, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for _, p := range args[1:] {
		j.parts[p] = true
	}
	if j.host, err = dial(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	if j.filter, err = dial(unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	j.of(number)
	switch j.verb {
	case "ADD":
		if err := j.add(); err != nil {
			return err
		}
		_, err = os.Stdout.WriteString("{}\n")
		return err
	case "DEL":
		return j.del()
	case "GC":
		from, err := strconv.Atoi(os.Getenv("CNI_CONTAINERID"))
		if err != nil {
			return err
		}
		return j.collect(from, number)
	}
	return nil
}

// of makes j the job of a container.
func (j *job) of(number int) {
	j.number, j.address = number, [4]byte{10, 40, byte(number >> 8), byte(number)}
}

// lease is the file that holds the address.
func (j *job) lease() string { return leases + strconv.Itoa(j.number) }

func (j *job) add() error {
	if j.parts["host-local"] {
		f, err := os.OpenFile(j.lease(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(os.Getenv("CNI_CONTAINERID") + "\r\n" + j.ifName)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	if !j.parts["bridge"] {
		return nil
	}
	var err error
	if j.netns, err = unix.Open(os.Getenv("CNI_NETNS"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	master, err := index(bridgeName)
	if err != nil {
		return err
	}
	if err := j.host.do(j.veth(master)); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	if err := j.elements(unix.NLM_F_CREATE|unix.NLM_F_EXCL, 0); err != nil {
		return fmt.Errorf("elements: %w", err)
	}
	runtime.LockOSThread() // the last thing that the process does
	if err := unix.Setns(j.netns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	return j.inside()
}

// inside gives the container its address, its default route and its sysctl.
func (j *job) inside() error {
	c, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	link, err := index(j.ifName)
	if err != nil {
		return err
	}
	if err := c.do(slices.Concat(setUp(link), j.addr(link), j.route(link))); err != nil {
		return fmt.Errorf("address and route: %w", err)
	}
	if !j.parts["tuning"] {
		return nil
	}
	f, err := os.OpenFile("/proc/sys/net/core/somaxconn", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("500")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// del ends the elements, which costs no grace period where the kernel can change the time of one that stands, and
// removes the link.
func (j *job) del() error {
	if j.parts["bridge"] {
		if err := j.elements(unix.NLM_F_CREATE, 1); err != nil {
			return fmt.Errorf("elements: %w", err)
		}
		if err := j.host.do(j.unlink()); err != nil {
			return fmt.Errorf("link: %w", err)
		}
	}
	if j.parts["host-local"] {
		return os.Remove(j.lease())
	}
	return nil
}

// collect removes the containers of these numbers: their links by the group that they are in, in one message.
func (j *job) collect(from, to int) error {
	var all message
	for n := from; n <= to; n++ {
		j.of(n)
		all = append(all, j.setElements(unix.NLM_F_CREATE, 1)...)
		if err := os.Remove(j.lease()); err != nil {
			return err
		}
	}
	if err := j.filter.transact(all); err != nil {
		return fmt.Errorf("elements: %w", err)
	}
	return j.host.do(ofGroup(group))
}

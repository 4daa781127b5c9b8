package disk

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"net/netip"
)

// childEnv makes this test's binary one of many processes that work on one directory. Its arguments are
// what to do, the folder, the subnet and an owner's name.
const childEnv = "FAIRLEAD_DISK_CHILD"

func child() {
	if os.Args[1] == "fault" {
		if err := faultChild(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	what, dataDir, subnet, id := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	set, err := ipam.Complete([]ipam.Set{
		{Path: "ipam.ranges[0]", Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix(subnet)}}},
		{Path: "ipam.ranges[1]", Ranges: []ipam.Range{{Subnet: netip.MustParsePrefix("fd00::/64")}}},
	})
	s := &Store{DataDir: dataDir, Sets: set, Log: slog.New(slog.DiscardHandler)}
	ctx := context.Background()
	add := func(id string) {
		r, e := s.Allocate(ctx, owner(id))
		if err = e; err == nil {
			fmt.Println(id, r.IPs[0].Address.Addr(), r.IPs[1].Address.Addr())
		}
	}
	switch what {
	case "add":
		add(id)
	case "del":
		err = s.Release(ctx, owner(id))
	case "key": // of the owner: its name up to the dash
		key, _, _ := strings.Cut(id, "-")
		s.Sticky = &Sticky{Key: key, TTL: time.Hour}
		add(id)
	case "import":
		_, err = s.Import(ctx, "net", importable(), false, false)
	case "reserve":
		d, e := s.open(ctx, "net", true)
		if err = e; err == nil {
			err = d.reserve([]ipam.Reservation{{Prefix: netip.MustParsePrefix("10.1.0.9/32"), For: id}})
			d.close()
		}
	case "sweep":
		err = s.Sweep(ctx, "net", nil)
	case "add-many":
		n, _ := strconv.Atoi(os.Args[5])
		for i := 0; i < n && err == nil; i++ {
			add(id + "-" + strconv.Itoa(i))
		}
	case "churn": // until killed
		held := map[string]bool{}
		for err == nil {
			c := id + "-" + strconv.Itoa(rand.IntN(8))
			if held[c] {
				err = s.Release(ctx, owner(c))
			} else {
				_, err = s.Allocate(ctx, owner(c))
			}
			held[c] = !held[c]
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start starts a child.
func start(t testing.TB, out *strings.Builder, args ...string) *exec.Cmd {
	t.Helper()
	cmd := command(out, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func command(out *strings.Builder, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	if out != nil {
		cmd.Stdout = out
	}
	return cmd
}

// testLog is a logger to the test's own.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, nil))
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func owners(ids ...string) (os []spec.Owner) {
	for _, id := range ids {
		os = append(os, owner(id))
	}
	return os
}

func unixTime(sec int64) time.Time { return time.Unix(sec, 0) }

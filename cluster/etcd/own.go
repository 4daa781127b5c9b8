package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/fairlead-cni/fairlead/kernel/record"
)

// An etcd that `fairlead cluster init` started has members of its own choice: they come and go, and who asks it has to
// follow them. Its users are named by their certificates.

// The users of such an etcd, as the common names of certificates say.
const (
	NodeUser = "fairlead" // each node, which has the least rights
	RootUser = "root"     // an administrator
)

// Protect has etcd check who asks, and gives nodes the rights that they need. Only an administrator may do more.
func (s *Store) Protect(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return err
	}
	status, err := c.AuthStatus(ctx)
	if err != nil {
		return s.failed(err)
	}
	if status.Enabled {
		return nil
	}
	prefix := "/fairlead/" + s.access.Cluster + "/"
	bySignature := &clientv3.UserAddOptions{NoPassword: true}
	for _, step := range []func() error{
		func() error { _, err := c.RoleAdd(ctx, NodeUser); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, NodeUser, prefix, clientv3.GetPrefixRangeEnd(prefix),
				clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAddWithOptions(ctx, NodeUser, "", bySignature); return err },
		func() error { _, err := c.UserGrantRole(ctx, NodeUser, NodeUser); return err },
		func() error { _, err := c.UserAddWithOptions(ctx, RootUser, "", bySignature); return err },
		func() error { _, err := c.UserGrantRole(ctx, RootUser, RootUser); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		err := rpctypes.Error(step())
		wasDone := errors.Is(err, rpctypes.ErrRoleAlreadyExist) || errors.Is(err, rpctypes.ErrUserAlreadyExist)
		if err != nil && !wasDone {
			return s.failed(err)
		}
	}
	return nil
}

// A StoreMember is a process of etcd.
type StoreMember struct {
	Name    string   `json:"name,omitempty"` // empty: it has never run
	ID      uint64   `json:"id"`
	Peers   []string `json:"peers"`   // URLs for other members
	Clients []string `json:"clients"` // URLs for nodes
	Learner bool     `json:"learner"` // it has no vote
	Answers bool     `json:"answers"`
}

// StoreMembers returns the members of etcd. Those that do not answer are among them.
func (s *Store) StoreMembers(ctx context.Context) (list []StoreMember, err error) {
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	soon, stop := context.WithTimeout(ctx, patience)
	defer stop()
	resp, err := c.MemberList(soon)
	if err != nil {
		return nil, s.failed(err)
	}
	for _, m := range resp.Members {
		one := StoreMember{Name: m.Name, ID: m.ID, Peers: m.PeerURLs, Clients: m.ClientURLs, Learner: m.IsLearner}
		for _, url := range m.ClientURLs {
			each, stop := context.WithTimeout(ctx, time.Second)
			_, err := c.Status(each, url)
			stop()
			one.Answers = one.Answers || err == nil || isDenied(err)
		}
		list = append(list, one)
	}
	return list, nil
}

// AddStoreMember makes room for a member with a URL. It returns the members that it has to know, as --initial-cluster of
// etcd wants them. The new one has no vote before PromoteStoreMember.
func (s *Store) AddStoreMember(ctx context.Context, name, peer string) (initial string, err error) {
	var members []*etcdserverpb.Member
	err = s.persist(ctx, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.MemberList(ctx)
		if err != nil {
			return err
		}
		members = resp.Members
		if memberAt(members, peer) != nil {
			return nil
		}
		added, err := c.MemberAddAsLearner(ctx, []string{peer})
		if err == nil {
			members = added.Members
		}
		return err
	})
	if errors.Is(err, rpctypes.ErrTooManyLearners) {
		return "", learns(members, err)
	}
	if err != nil {
		return "", err
	}
	var parts []string
	for _, m := range members {
		called := m.Name
		if slices.Contains(m.PeerURLs, peer) {
			called = name
		}
		for _, url := range m.PeerURLs {
			parts = append(parts, called+"="+url)
		}
	}
	return strings.Join(parts, ","), nil
}

// learns says which other machine becomes a member: etcd lets one do so at a time.
func learns(members []*etcdserverpb.Member, err error) error {
	var urls []string
	for _, m := range members {
		if m.IsLearner {
			urls = append(urls, m.PeerURLs...)
		}
	}
	at := strings.Join(urls, ",")
	return fmt.Errorf("the machine at %s becomes a member, and etcd lets one do so at a time (%w): repeat this when its `fairlead cluster join "+
		"--store` has ended. If that machine is gone for good: `fairlead cluster members remove %s`", at, err, at)
}

// PromoteStoreMember waits until the member with a URL has all data, and gives it a vote.
func (s *Store) PromoteStoreMember(ctx context.Context, peer string) error {
	return s.persist(ctx, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.MemberList(ctx)
		if err != nil {
			return err
		}
		m := memberAt(resp.Members, peer)
		switch {
		case m == nil:
			return fmt.Errorf("no member has the URL %s", peer)
		case !m.IsLearner:
			return nil
		}
		if err := askLeader(ctx, c, resp.Members); err != nil {
			return err
		}
		_, err = c.MemberPromote(ctx, m.ID)
		return err
	})
}

// askLeader has a client ask the member that leads: another one would pass a promotion on without saying who wants it, and
// the leader would refuse.
func askLeader(ctx context.Context, c *clientv3.Client, all []*etcdserverpb.Member) error {
	for _, m := range all {
		for _, url := range m.ClientURLs {
			ctx, stop := context.WithTimeout(ctx, time.Second)
			status, serr := c.Status(ctx, url)
			stop()
			if serr == nil && status.Leader == m.ID {
				c.SetEndpoints(url)
				return nil
			}
		}
	}
	return rpctypes.ErrNoLeader
}

func memberAt(all []*etcdserverpb.Member, peer string) *etcdserverpb.Member {
	for _, m := range all {
		if slices.Contains(m.PeerURLs, peer) {
			return m
		}
	}
	return nil
}

// catchUp is the longest time that a member may take to be added, or to get the data.
const catchUp = time.Minute

// persist repeats a change of the members as long as etcd is not ready for it: members have to be connected for some
// seconds before another one is added, a new one has to have the data, and a leader may be elected meanwhile.
func (s *Store) persist(ctx context.Context, change func(context.Context, *clientv3.Client) error) error {
	ctx, stop := context.WithTimeout(ctx, catchUp)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return err
	}
	for {
		err := change(ctx, c)
		if err == nil {
			return nil
		}
		var of rpctypes.EtcdError
		isUnready := errors.As(rpctypes.Error(err), &of) && (of.Code() == codes.Unavailable || errors.Is(of, rpctypes.ErrMemberLearnerNotReady))
		if !isUnready {
			return s.failed(err)
		}
		select {
		case <-ctx.Done():
			return s.failed(err)
		case <-time.After(retry):
		}
	}
}

// RemoveStoreMember removes the member that has a name or a URL, and returns the others as they were before: if the member is
// that of this machine, it does not answer any more.
func (s *Store) RemoveStoreMember(ctx context.Context, name string) (others []StoreMember, err error) {
	list, err := s.StoreMembers(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(m StoreMember) bool { return m.Name == name || slices.Contains(m.Peers, name) })
	if i < 0 {
		var names []string
		for _, m := range list {
			names = append(names, m.Name)
		}
		return nil, fmt.Errorf("etcd has no member %q; it has %s", name, strings.Join(names, ", "))
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	others = slices.Delete(slices.Clone(list), i, i+1)
	var urls []string
	for _, m := range others {
		if m.Answers {
			urls = append(urls, m.Clients...)
		}
	}
	if err := moveLead(ctx, c, list[i], others); err != nil {
		return nil, s.failed(err)
	}
	if len(urls) > 0 { // the removed member ends, maybe before it answers
		c.SetEndpoints(urls...)
	}
	if _, err := c.MemberRemove(ctx, list[i].ID); err != nil {
		return nil, lostQuorum(list, list[i], s.failed(err))
	}
	return others, nil
}

// moveLead has another member lead before the leader is removed. The leader may end before the others hear of its removal: one of two
// would wait for its vote for ever.
func moveLead(ctx context.Context, c *clientv3.Client, removed StoreMember, others []StoreMember) error {
	i := slices.IndexFunc(others, func(m StoreMember) bool { return m.Answers && !m.Learner })
	if i < 0 || !removed.Answers {
		return nil
	}
	for _, url := range removed.Clients {
		status, err := c.Status(ctx, url)
		if err != nil || status.Leader != removed.ID {
			continue
		}
		c.SetEndpoints(url) // no other one may move the lead
		_, err = c.MoveLeader(ctx, others[i].ID)
		return err
	}
	return nil
}

// lostQuorum says what it means that etcd does not remove a member, because the others would be too few.
func lostQuorum(list []StoreMember, removed StoreMember, err error) error {
	if !errors.Is(err, rpctypes.ErrUnhealthy) && !errors.Is(err, rpctypes.ErrMemberNotEnoughStarted) {
		return err
	}
	var silent []string
	for _, m := range list {
		if !m.Answers && m.ID != removed.ID {
			silent = append(silent, cmp.Or(m.Name, strings.Join(m.Peers, ",")))
		}
	}
	todo := "the others have to answer one another for some seconds before: try again, and look at their logs"
	switch {
	case len(list) == 1:
		todo = "it is the only one: let another machine join with --store before"
	case len(silent) > 0:
		todo = "start " + strings.Join(silent, " and ") + " before; if their machines are gone for good, docs/fleet.md says what to do"
	}
	return fmt.Errorf("member %s stays, because too few of the others answer: etcd would stop without it (%w): %s", removed.Name, err, todo)
}

// endpointsPath is the file with the members that a node has heard of since it joined.
func (s *Store) endpointsPath() string { return filepath.Join(Dir, s.access.Cluster+".store.json") }

// Endpoints returns the URLs at which the node asks: those that it was given, and the members that it has heard of.
func (s *Store) Endpoints() []string {
	all := slices.Clone(s.access.Endpoints)
	if !s.access.Own {
		return all
	}
	b, err := os.ReadFile(s.endpointsPath())
	var heard []string
	if err != nil || json.Unmarshal(b, &heard) != nil {
		return all // it is written anew
	}
	for _, url := range heard {
		if !slices.Contains(all, url) {
			all = append(all, url)
		}
	}
	return all
}

// followMembers keeps the URLs at which the node asks as etcd has members, until ctx ends.
func (s *Store) followMembers(ctx context.Context) {
	for s.access.Own && ctx.Err() == nil {
		next := again
		if err := s.refreshMembers(ctx); err != nil {
			next = pause
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

// refreshMembers asks etcd for its members, and keeps the URLs of those that vote.
func (s *Store) refreshMembers(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return err
	}
	resp, err := c.MemberList(ctx)
	if err != nil {
		return s.failed(err)
	}
	var urls []string
	for _, m := range resp.Members {
		if !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	slices.Sort(urls)
	known := c.Endpoints()
	slices.Sort(known)
	if len(urls) == 0 || slices.Equal(urls, known) {
		return nil
	}
	c.SetEndpoints(urls...)
	b, err := json.Marshal(urls)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(Dir, 0o700); err != nil {
		return err
	}
	return record.Replace(s.endpointsPath(), append(b, '\n'), false)
}

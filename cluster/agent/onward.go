package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cluster/exchange"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/spec"
)

// A question asks the agent of another node about a packet for one of its containers.
type question struct {
	Packet agentstatus.Packet `json:"packet"`
	Prefix netip.Prefix       `json:"prefix,omitzero"` // of the asking node, with the packet's source
	Way    way                `json:"way"`             // by which the asking node sends the packet
}

// err returns why a question is none.
func (q question) err() error {
	p, t := q.Packet, q.Way.Tunnel
	isPacket := p.Src.IsValid() && p.Dst.IsValid() && p.Src.Is4() == p.Dst.Is4()
	isOfPacket := !q.Prefix.IsValid() || q.Prefix.Contains(p.Src)
	isTunnel := t == nil || t.Local.IsValid() && q.Way.Endpoint.Is4() == t.Local.Is4()
	if !isPacket || !isOfPacket || !isTunnel {
		return errors.New("the question makes no sense")
	}
	return nil
}

// A reply is what the other node says.
type reply struct {
	Side  side            `json:"side"`
	Trace json.RawMessage `json:"trace,omitempty"`
	Error string          `json:"error,omitempty"` // why there is no trace, for people
}

// startExchange lets agents ask each other, where the paths to them are tested.
func (a *Agent) startExchange(ctx context.Context) {
	p := a.paths.prober
	e := &exchange.Exchange{Node: a.Node, Secret: a.Secret, Send: p.Send, Answer: a.answer}
	if a.Secret == nil {
		e.Secret = func() ([]byte, error) { return nil, nil }
	}
	p.Sealed = func(node string, datagram []byte) { e.Receive(ctx, node, datagram) }
	a.exchange.Store(e)
}

// follow asks the node that has the packet's destination.
func (a *Agent) follow(ctx context.Context, p agentstatus.Packet) (o agentstatus.Onward) {
	s := a.Status()
	node, _ := ownerOf(s.Nodes, p.Dst)
	o.Node = node
	if node == "" || node == a.Node {
		o.Unanswered = fmt.Sprintf("no node was asked: as far as the agent of this node knows, no other one has %v", p.Dst)
		return o
	}
	here := a.side(s, p.Dst, p.Src)
	_, prefix := ownerOf(s.Nodes, p.Src)
	q := question{Packet: p, Prefix: prefix, Way: here.Way}
	there, err := a.ask(ctx, node, q)
	if err != nil {
		o.Unanswered = a.unanswered(s, node, err)
		return o
	}
	o.Trace, o.Unanswered = there.Trace, there.Error
	o.Disagreements = disagreements(p, here, there.Side)
	return o
}

func (a *Agent) ask(ctx context.Context, node string, q question) (there reply, err error) {
	e := a.exchange.Load()
	if e == nil {
		return there, errNoPort
	}
	ctx, stop := context.WithTimeout(ctx, agentstatus.AnswerTime)
	defer stop()
	text, err := json.Marshal(q)
	if err != nil {
		return there, err
	}
	answer, err := e.Ask(ctx, node, text)
	if err != nil {
		return there, err
	}
	return there, json.Unmarshal(answer, &there)
}

var errNoPort = errors.New("the agent of this node has no --probe-port, by which agents ask each other")

// unanswered says why another node did not answer.
func (a *Agent) unanswered(s agentstatus.Status, node string, err error) string {
	switch {
	case errors.Is(err, exchange.ErrNoSecret), errors.Is(err, errNoPort):
		return fmt.Sprintf("node %s was not asked: %v", node, err)
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("node %s gave no answer: %v", node, err)
	}
	text := fmt.Sprintf("node %s did not answer within %v", node, agentstatus.AnswerTime)
	i := slices.IndexFunc(s.Nodes, func(n agentstatus.Node) bool { return n.Name == node })
	path := s.Nodes[i].Path
	switch {
	case path == nil:
		return text + ": the path to its agent was not tested yet"
	case path.Agents == agentstatus.Passed:
		return text + ", and its agent answered the last test: it is an older one, has another key or none, or has just stopped"
	}
	return text + fmt.Sprintf(": its agent does not answer tests at UDP %d either; `fairlead cluster status` says more", a.ProbePort)
}

// answer follows the packet of another node's question from its arrival here.
func (a *Agent) answer(ctx context.Context, node string, text []byte) []byte {
	var q question
	r := reply{}
	err := json.Unmarshal(text, &q)
	if err == nil {
		err = q.err()
	}
	if err == nil {
		s := a.Status()
		r.Side = a.side(s, q.Packet.Src, q.Packet.Dst)
		r.Side.Admits = a.admits(ctx, q)
		r.Trace, err = a.arrival(s, node, q).follow(ctx)
	}
	if err != nil {
		r.Error = fmt.Sprintf("node %s could not follow the packet: %v", a.Node, err)
	}
	answer, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	return answer
}

// admits reports whether the filter of the VXLAN port lets in what another node sends for its containers.
func (a *Agent) admits(ctx context.Context, q question) bool {
	t := q.Way.Tunnel
	if t == nil || !q.Prefix.IsValid() {
		return true
	}
	f := overlay.PortFilter{Network: a.Network, ID: a.ID, Port: a.Port, Senders: []overlay.Sender{
		{Endpoints: []netip.Addr{t.Local}, Prefixes: []netip.Prefix{q.Prefix}}}}
	admits, err := f.Admits(ctx, a.World)
	return admits || err != nil
}

// An arrival is a packet that comes in by a link of this host.
type arrival struct {
	Packet agentstatus.Packet `json:"packet"`
	In     string             `json:"in"`
	Way    way                `json:"way"`            // by which it came
	Local  netip.Addr         `json:"local,omitzero"` // of this host, to which the tunnel goes
}

// arrival returns where packets of another node's containers come in.
func (a *Agent) arrival(s agentstatus.Status, node string, q question) arrival {
	in := arrival{Packet: q.Packet, Way: q.Way, Local: q.Way.Endpoint}
	i := slices.IndexFunc(s.Nodes, func(n agentstatus.Node) bool { return n.Name == node })
	from := q.Packet.Src
	if i >= 0 && len(s.Nodes[i].Endpoints) > 0 {
		from = s.Nodes[i].Endpoints[0]
	}
	if q.Way.Tunnel != nil {
		from = q.Way.Tunnel.Local
	}
	in.In = sendsTo(a.World.Host, from).Link
	if q.Way.Encrypted && a.Mode == WireGuard { // out of which it comes as it is in the container
		in.In = a.Tunnel.Device
		return in
	}
	isOwn := func(d agentstatus.Device) bool { return d.Local == in.Local }
	isFamily := func(d agentstatus.Device) bool { return d.Local.Is4() == in.Local.Is4() }
	if slices.ContainsFunc(s.Devices, isOwn) {
		return in
	}
	if i := slices.IndexFunc(s.Devices, isFamily); i >= 0 { // what another host gets is not followed there
		in.Local = s.Devices[i].Local
	}
	return in
}

// ArrivalVerb is the argument of this program for which it runs FollowArrival. What reads all rules of a host is a process of
// its own: it is killed in time, and its memory goes with it.
const ArrivalVerb = "follow-arrival"

// mostTrace is the size of the longest trace in bytes.
const mostTrace = 1 << 20

// follow runs FollowArrival in a process.
func (in arrival) follow(ctx context.Context) (json.RawMessage, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, ArrivalVerb)
	var said, failed bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &said, &failed
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("it takes longer than a second and a half")
		}
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Bytes()))
	}
	if said.Len() > mostTrace {
		return nil, fmt.Errorf("the answer has %d bytes", said.Len())
	}
	return said.Bytes(), nil
}

// FollowArrival reads an arrival, and writes what becomes of the packet, as fairlead trace prints it as JSON.
func FollowArrival(in io.Reader, out io.Writer) error {
	var at arrival
	if err := json.NewDecoder(in).Decode(&at); err != nil {
		return err
	}
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	defer host.Close()
	t := trace.Tracer{Host: host, Containers: containersWith(at.Packet.Dst)}
	answer, err := t.Trace(at.question())
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

// question returns the packet as it comes in: in one of VXLAN, if it came by a tunnel.
func (at arrival) question() trace.Question {
	p, t := at.Packet, at.Way.Tunnel
	if t == nil {
		return trace.Question{In: at.In, Src: p.Src, Dst: p.Dst, Proto: p.Proto, DstPort: p.Port}
	}
	inner := packetfilter.Packet{Src: p.Src, Dst: p.Dst, Proto: p.Proto, DstPort: p.Port}
	mac, _ := net.ParseMAC(at.Way.MAC) // of an unknown one, the way has ended there
	copy(inner.DstMAC[:], mac)
	return trace.Question{In: at.In, Src: t.Local, Dst: at.Local, Proto: kernel.UDP, DstPort: t.Port, Inner: &inner, VNI: t.ID}
}

// containersWith returns the containers of this node that have an address, as far as they are known.
func containersWith(addr netip.Addr) (list []trace.Container) {
	all, _ := new(attach.Runtime).List("")
	for _, c := range all {
		has := func(ip spec.IP) bool { return ip.Address.Addr() == addr }
		if c.Netns != "" && c.Result != nil && slices.ContainsFunc(c.Result.IPs, has) {
			list = append(list, trace.Container{Name: c.ContainerID, Netns: c.Netns, Addr: addr})
		}
	}
	return list
}

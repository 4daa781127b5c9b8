package agentstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// A Packet is one that leaves this node for a container of another node.
type Packet struct {
	Src   netip.Addr `json:"src"`
	Dst   netip.Addr `json:"dst"`
	Proto byte       `json:"proto"` // TCP, UDP, …
	Port  uint16     `json:"port,omitempty"`
}

// An Onward is what another node says of a packet.
type Onward struct {
	Node string `json:"node"` // empty: none was asked

	// Trace is what fairlead trace prints as JSON, from the packet's arrival on.
	Trace json.RawMessage `json:"trace,omitempty"`

	// Unanswered says why there is no Trace, for people.
	Unanswered string `json:"unanswered,omitempty"`

	Disagreements []Disagreement `json:"disagreements,omitempty"`
}

// A Disagreement is something that the two nodes know differently.
type Disagreement struct {
	Text  string `json:"text"`  // for people
	Stops bool   `json:"stops"` // the packet, or its answer, does not arrive because of it
}

// AnswerTime is how long an agent waits for that of another node.
const AnswerTime = 2 * time.Second

// Follow asks the agent of a network to have another node follow a packet from its arrival there.
func Follow(ctx context.Context, network string, p Packet) (*Onward, error) {
	ctx, stop := context.WithTimeout(ctx, AnswerTime+time.Second)
	defer stop()
	o := new(Onward)
	line := "POST /trace?" + p.query().Encode()
	return o, request(ctx, network, line, func(answer io.Reader) error { return decode(answer, o) })
}

func (p Packet) query() url.Values {
	return url.Values{"src": {p.Src.String()}, "dst": {p.Dst.String()}, "proto": {strconv.Itoa(int(p.Proto))},
		"port": {strconv.Itoa(int(p.Port))}}
}

// PacketOf reads the packet of a request to Follow.
func PacketOf(q url.Values) (p Packet, err error) {
	if p.Src, err = netip.ParseAddr(q.Get("src")); err != nil {
		return p, fmt.Errorf("src: %w", err)
	}
	if p.Dst, err = netip.ParseAddr(q.Get("dst")); err != nil {
		return p, fmt.Errorf("dst: %w", err)
	}
	proto, err := strconv.ParseUint(q.Get("proto"), 10, 8)
	if err != nil {
		return p, fmt.Errorf("proto: %w", err)
	}
	port, err := strconv.ParseUint(q.Get("port"), 10, 16)
	if err != nil {
		return p, fmt.Errorf("port: %w", err)
	}
	p.Proto, p.Port = byte(proto), uint16(port)
	return p, nil
}

package probe

import (
	"bytes"
	"encoding/binary"
	"time"
)

// A size says which of the packets of a test one is.
type size byte

// The sizes.
const (
	small  size = iota // it passes wherever anything does
	full               // as long as the way says
	known              // the longest one that passed when a full one last did not
	beyond             // one byte longer than that
	sizes              // how many there are
	search             // one of those that look for the longest one
)

// smallBytes is the length of a small packet.
const smallBytes = 128

// An echoData is in an echo request, and comes back in the reply. Zeros follow it.
type echoData struct {
	size  size
	nonce uint64
}

// echoLen is the length of an echoData.
const echoLen = 16

func echoMagic() []byte { return []byte("FLpe") }

func (e echoData) bytes(total int) []byte {
	b := make([]byte, max(total, echoLen))
	copy(b, echoMagic())
	b[4] = byte(e.size)
	binary.BigEndian.PutUint64(b[8:], e.nonce)
	return b
}

// parseEcho returns what an echo has, if it is one of ours.
func parseEcho(b []byte) (e echoData, ok bool) {
	if len(b) < echoLen || !bytes.HasPrefix(b, echoMagic()) || size(b[4]) > search {
		return echoData{}, false
	}
	return echoData{size(b[4]), binary.BigEndian.Uint64(b[8:])}, true
}

// A route says how an inner datagram reaches the other node's address among its containers.
type route byte

// The routes.
const (
	byRoute route = iota // as packets of containers do
	byLink               // by the link that both nodes are on, whatever the routes say
	routes
)

func innerMagic() []byte { return []byte("FLpi") }

// An innerData is what an inner datagram carries: by which route it was sent, and the nonce of the sender's test. The
// receiver tells the nonce back outside of the tunnel, so another host cannot make a test pass.
type innerData struct {
	by    route
	nonce uint64
}

func (d innerData) bytes() []byte {
	return binary.BigEndian.AppendUint64(append(innerMagic(), byte(d.by), 0, 0, 0), d.nonce)
}

func parseInner(b []byte) (d innerData, ok bool) {
	if len(b) != 16 || !bytes.HasPrefix(b, innerMagic()) || route(b[4]) >= routes {
		return d, false
	}
	return innerData{route(b[4]), binary.BigEndian.Uint64(b[8:])}, true
}

// A datagram is what agents send each other outside of the tunnel: how long ago the sender received what, and the
// nonce by which the receiver knows that this was said in answer to its own datagram.
type datagram struct {
	ask    bool   // the receiver is to answer
	mine   uint64 // nonce of the sender
	yours  uint64 // the last one that the sender has received; zero: it has received none
	echoes [families][2]time.Duration
	inner  [families][routes]uint64 // nonces of the last inner datagrams that the sender received
}

// never stands for what was not received in the last hour.
const never = time.Hour

// datagramLen is the length of every datagram.
const datagramLen = atInner + families*int(routes)*8

// atInner is where the nonces of inner datagrams begin.
const atInner = 4 + 4 + 8 + 8 + families*2*4

func datagramMagic() []byte { return []byte("FLpd") }

// version is that of datagrams. Agents of other versions do not understand each other, and say that nothing arrives.
const version = 1

func (d datagram) bytes() []byte {
	b := append(make([]byte, 0, datagramLen), datagramMagic()...)
	b = append(b, version, 0, 0, 0)
	if d.ask {
		b[5] = 1
	}
	b = binary.BigEndian.AppendUint64(b, d.mine)
	b = binary.BigEndian.AppendUint64(b, d.yours)
	for _, ago := range d.ages() {
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(*ago, 0), never)/time.Millisecond))
	}
	for _, of := range d.inner {
		for _, nonce := range of {
			b = binary.BigEndian.AppendUint64(b, nonce)
		}
	}
	return b
}

// ages returns all times of a datagram in their order.
func (d *datagram) ages() (all []*time.Duration) {
	for f := range families {
		for i := range d.echoes[f] {
			all = append(all, &d.echoes[f][i])
		}
	}
	return all
}

// parseDatagram is strict: what this version does not send is refused.
func parseDatagram(b []byte) (d datagram, ok bool) {
	if len(b) != datagramLen || !bytes.HasPrefix(b, datagramMagic()) || b[4] != version || b[5] > 1 || b[6] != 0 ||
		b[7] != 0 {
		return datagram{}, false
	}
	d = datagram{ask: b[5] == 1, mine: binary.BigEndian.Uint64(b[8:]), yours: binary.BigEndian.Uint64(b[16:])}
	for i, ago := range d.ages() {
		*ago = time.Duration(binary.BigEndian.Uint32(b[24+4*i:])) * time.Millisecond
		if *ago > never {
			return datagram{}, false
		}
	}
	for f := range families {
		for i := range routes {
			at := atInner + 8*(f*int(routes)+int(i))
			d.inner[f][i] = binary.BigEndian.Uint64(b[at:])
		}
	}
	return d, d.mine != 0
}

// sealedMagic begins a datagram that the probe hands on: what package exchange seals.
func sealedMagic() []byte { return []byte("FLps") }

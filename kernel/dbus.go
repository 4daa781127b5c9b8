package kernel

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Bus is a connection to D-Bus, as much of it as firewalld takes: methods with texts as arguments, that answer with a
// text, a boolean or nothing. A library for all of D-Bus would make every plugin start later.
type Bus struct {
	conn   net.Conn
	in     *bufio.Reader
	serial uint32
}

// ErrNoBus says that no D-Bus runs.
var ErrNoBus = errors.New("no D-Bus is there")

// A BusError is an error that somebody on the bus answered with.
type BusError struct{ Name, Text string }

func (e *BusError) Error() string { return e.Name + ": " + e.Text }

// busPatience bounds how long an answer may take. firewalld takes seconds while it reloads.
const busPatience = 15 * time.Second

// SystemBus connects to the system's bus, at DBUS_SYSTEM_BUS_ADDRESS or where it usually is.
func SystemBus(ctx context.Context) (*Bus, error) {
	addresses := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if addresses == "" {
		addresses = "unix:path=/run/dbus/system_bus_socket"
	}
	errs := []error{ErrNoBus}
	for _, address := range strings.Split(addresses, ";") {
		path, ok := unixAddress(address)
		if !ok {
			errs = append(errs, fmt.Errorf("D-Bus at %q: only unix:path= and unix:abstract= are understood", address))
			continue
		}
		b, err := dialBus(ctx, path)
		if err == nil {
			return b, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// unixAddress is the socket of "unix:path=/run/dbus/system_bus_socket,guid=…".
func unixAddress(address string) (string, bool) {
	rest, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return "", false
	}
	for kv := range strings.SplitSeq(rest, ",") {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "path":
			return v, true
		case "abstract":
			return "@" + v, true
		}
	}
	return "", false
}

func dialBus(ctx context.Context, path string) (*Bus, error) {
	d := net.Dialer{Timeout: busPatience}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(busPatience)
	if by, ok := ctx.Deadline(); ok && by.Before(end) {
		end = by
	}
	conn.SetDeadline(end)
	b := &Bus{conn: conn, in: bufio.NewReader(conn)}
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid())))
	if _, err = io.WriteString(conn, "\x00AUTH EXTERNAL "+uid+"\r\n"); err == nil {
		var line string
		if line, err = b.in.ReadString('\n'); err == nil && !strings.HasPrefix(line, "OK ") {
			err = fmt.Errorf("it does not let user %d in: %s", os.Geteuid(), strings.TrimSpace(line))
		}
	}
	if err == nil {
		_, err = io.WriteString(conn, "BEGIN\r\n")
	}
	if err == nil {
		_, err = b.Call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("D-Bus at %s: %w", path, err)
	}
	return b, nil
}

// Close closes the connection.
func (b *Bus) Close() { b.conn.Close() }

// Owned reports whether somebody has a name on the bus.
func (b *Bus) Owned(name string) (bool, error) {
	v, err := b.Call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameHasOwner", name)
	owned, _ := v.(bool)
	return owned, err
}

// A busBuffer is a message while it is written, little-endian.
type busBuffer []byte

func (m *busBuffer) pad(n int) {
	for len(*m)%n != 0 {
		*m = append(*m, 0)
	}
}

func (m *busBuffer) u32(v uint32) {
	m.pad(4)
	*m = binary.LittleEndian.AppendUint32(*m, v)
}

func (m *busBuffer) text(s string) {
	m.u32(uint32(len(s)))
	*m = append(append(*m, s...), 0)
}

// field is one of the header: a struct of a number and a variant.
func (m *busBuffer) field(code byte, typ, value string) {
	m.pad(8)
	*m = append(*m, code, 1, typ[0], 0)
	if typ == "g" {
		*m = append(append(append(*m, byte(len(value))), value...), 0)
		return
	}
	m.text(value)
}

const (
	busCall   = 1
	busReturn = 2
	busFailed = 3

	busNoAutoStart = 2
)

// Call calls a method and returns the first value of its answer, a string or a bool, or nil. Nobody is started for it.
func (b *Bus) Call(to, path, iface, method string, args ...string) (any, error) {
	b.serial++
	var fields, body busBuffer
	fields.field(1, "o", path)
	fields.field(2, "s", iface)
	fields.field(3, "s", method)
	fields.field(6, "s", to)
	if len(args) > 0 {
		fields.field(8, "g", strings.Repeat("s", len(args)))
	}
	for _, a := range args {
		body.text(a)
	}
	m := busBuffer{'l', busCall, busNoAutoStart, 1}
	m.u32(uint32(len(body)))
	m.u32(b.serial)
	m.u32(uint32(len(fields)))
	m = append(m, fields...) // which begins at 16, so that the padding is right
	m.pad(8)
	m = append(m, body...)
	if _, err := b.conn.Write(m); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	for {
		r, err := b.receive()
		if err != nil {
			return nil, fmt.Errorf("call %s: %w", method, err)
		}
		if r.reply != b.serial {
			continue // a signal
		}
		if r.typ == busFailed {
			text, _ := r.value.(string)
			return nil, &BusError{r.failed, text}
		}
		return r.value, nil
	}
}

type busMessage struct {
	typ    byte
	reply  uint32 // the serial of what it answers
	failed string // the name of an error
	value  any
}

var errBusGarbled = errors.New("the answer is garbled")

// receive reads a message.
func (b *Bus) receive() (r busMessage, err error) {
	head := make([]byte, 16)
	if _, err := io.ReadFull(b.in, head); err != nil {
		return r, err
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if head[0] == 'B' {
		order = binary.BigEndian
	}
	size, fields := order.Uint32(head[4:]), order.Uint32(head[12:])
	if size > 1<<20 || fields > 1<<16 {
		return r, errBusGarbled
	}
	rest := make([]byte, int(fields+7)&^7+int(size))
	if _, err := io.ReadFull(b.in, rest); err != nil {
		return r, err
	}
	r.typ = head[1]
	p := busParser{b: rest[:fields], order: order}
	signature := ""
	for p.pad(8); len(p.b) > p.at && !p.bad; p.pad(8) {
		code := p.byte()
		typ := p.signature()
		v := p.value(typ)
		switch code {
		case 4:
			r.failed, _ = v.(string)
		case 5:
			r.reply, _ = v.(uint32)
		case 8:
			signature, _ = v.(string)
		}
	}
	if p.bad {
		return r, errBusGarbled
	}
	if signature != "" {
		body := busParser{b: rest[int(fields+7)&^7:], order: order}
		r.value = body.value(signature[:1])
	}
	return r, nil
}

// A busParser reads values. What it does not know or what is too short makes it bad.
type busParser struct {
	b     []byte
	at    int
	order binary.ByteOrder
	bad   bool
}

func (p *busParser) pad(n int) { p.at = (p.at + n - 1) / n * n }

func (p *busParser) take(n int) []byte {
	if p.bad || n < 0 || p.at+n > len(p.b) {
		p.bad = true
		return make([]byte, max(0, min(n, 8)))
	}
	p.at += n
	return p.b[p.at-n : p.at]
}

func (p *busParser) byte() byte { return p.take(1)[0] }

func (p *busParser) u32() uint32 {
	p.pad(4)
	return p.order.Uint32(p.take(4))
}

func (p *busParser) signature() string {
	s := string(p.take(int(p.byte())))
	p.take(1)
	return s
}

func (p *busParser) value(typ string) any {
	switch typ {
	case "s", "o":
		s := string(p.take(int(p.u32())))
		p.take(1)
		return s
	case "g":
		return p.signature()
	case "u":
		return p.u32()
	case "b":
		return p.u32() != 0
	}
	p.bad = true
	return nil
}

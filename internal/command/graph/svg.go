package graph

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Sizes in pixels. Text has a fixed number of columns: longer text is shortened, and its title shows it whole.
const (
	margin    = 24
	gutter    = 22 // left of the panels, for the line from the host
	cardWidth = 276
	gap       = 18
	pad       = 18
	mostWide  = 4  // cards in a row
	line      = 17 // height of a line of text
	wireDrop  = 34 // between a row of cards and what is above it
	letter    = 7.25
	columns   = 34 // characters in a line of a card
	innerWide = mostWide*cardWidth + (mostWide-1)*gap + 2*pad
)

// sheet is the style sheet. It loads no font and no script, and has a dark variant.
const sheet = `
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2933}
.b{font-weight:700;font-size:13px} .h{font-weight:700;font-size:16px} .s{fill:#5b6875;font-size:11px}
.bg{fill:#fff} .host{fill:#dfeaf6;stroke:#6b8fb5} .panel{fill:#f5f7fa;stroke:#c6d0da}
.head{fill:#e2f1e5;stroke:#71a67b} .card{fill:#fff;stroke:#aab7c4} .gone{stroke-dasharray:5 4}
.pill{fill:#efe6fa;stroke:none} .pt{fill:#5b3a8c;font-size:11px} .port{fill:#a34c00}
.w{stroke:#5f7f9f;stroke-width:1.6;fill:none} .bad{stroke:#c62828;stroke-dasharray:5 4} .err{fill:#c62828}
.ok{fill:#2e9b4f} .dot{stroke:none} .unk{fill:#98a2ad}
@media (prefers-color-scheme:dark){
text{fill:#e3e8ed} .s{fill:#9aa7b4} .bg{fill:#12171d} .host{fill:#1d3046;stroke:#4f7299}
.panel{fill:#191f27;stroke:#37424e} .head{fill:#1c3524;stroke:#47784f} .card{fill:#222a33;stroke:#4a5866}
.pill{fill:#3a2d52} .pt{fill:#cdb5f5} .port{fill:#f2a65a}
.w{stroke:#7d9dbd} .bad{stroke:#ff6b6b} .err{fill:#ff7b7b} .ok{fill:#4cc271} .unk{fill:#7b8794}}
`

// WriteSVG writes the graph as a picture: the host at the top, below it a panel for each segment, with a card for
// each interface.
func (g *Graph) WriteSVG(out io.Writer) error {
	p := &picture{graph: g}
	y := p.host()
	for _, shelf := range g.shelves() {
		y = p.shelf(shelf, y)
	}
	for _, u := range g.Unseen {
		y += line
		p.text(margin, y, "s", "could not be seen: "+u, fit(p.wide))
	}
	var b bytes.Buffer
	width, height := 2*margin+gutter+p.wide, y+margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img">`,
		width, height)
	fmt.Fprintf(&b, "\n<title>%s</title>\n<style>%s</style>\n", escaped("The networks of host "+g.Host), sheet)
	fmt.Fprintf(&b, "<rect class=\"bg\" width=\"%d\" height=\"%d\"/>\n", width, height)
	hostBox := fmt.Sprintf(`<rect class="host" x="%d" y="%d" width="%d" height="%d" rx="8"/>`+"\n", margin, margin,
		gutter+p.wide, p.hostHeight)
	for _, part := range [][]byte{[]byte(hostBox), p.boxes.Bytes(), p.wires.Bytes(), p.words.Bytes()} {
		b.Write(part)
	}
	b.WriteString("</svg>\n")
	_, err := out.Write(b.Bytes())
	return err
}

// picture is a graph while it is drawn. Lines are drawn above boxes, and text above lines.
type picture struct {
	graph               *Graph
	boxes, wires, words bytes.Buffer
	wide                int // of the widest row of panels
	hostHeight          int
}

// panel is a segment and its size.
type panel struct {
	Segment
	across int // cards in a row
	width  int
}

// shelves returns the segments in rows, each row with as many as fit.
func (g *Graph) shelves() (rows [][]panel) {
	x := innerWide + 1
	for _, s := range g.Segments {
		n := len(s.Ends)
		if s.More > 0 {
			n++
		}
		p := panel{s, max(1, min(n, mostWide)), 0}
		if n > mostWide && n <= 2*(mostWide-1) { // five or six cards: two rows of three
			p.across = (n + 1) / 2
		}
		p.width = p.across*cardWidth + (p.across-1)*gap + 2*pad
		if x += p.width + gap; x-gap > innerWide {
			rows, x = append(rows, nil), p.width+gap
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], p)
	}
	return rows
}

// host draws the host's box, and returns the y below it.
func (p *picture) host() int {
	p.wide = cardWidth + 2*pad
	for _, row := range p.graph.shelves() {
		wide := -gap
		for _, s := range row {
			wide += s.width + gap
		}
		p.wide = max(p.wide, wide)
	}
	y, most := margin+26, fit(p.wide-32)
	p.text(margin+16, y, "h", "host "+p.graph.Host, most*3/4)
	for _, u := range p.graph.Uplinks {
		y += line
		p.text(margin+16, y, "", u, most)
	}
	if len(p.graph.Uplinks) == 0 {
		y += line
		p.text(margin+16, y, "s", "no default route", most)
	}
	p.hostHeight = y + 14 - margin
	return margin + p.hostHeight
}

// shelf draws a row of panels below y, and returns the y where it ends.
func (p *picture) shelf(row []panel, y int) (end int) {
	trunk, bus := margin+gutter/2, y+24
	p.wire("", trunk, margin+p.hostHeight, trunk, bus)
	x, last := margin+gutter, 0
	for _, s := range row {
		last = x + pad + 8
		p.wire(s.Up, last, bus, last, bus+16)
		end = max(end, p.panel(s, x, bus+16))
		x += s.width + gap
	}
	p.wire("", trunk, bus, last, bus)
	return end
}

// panel draws a segment at x, y, and returns the y where it ends.
func (p *picture) panel(s panel, x, y int) (end int) {
	wide := fit(s.width - 4*12)
	head := 30 + line*len(s.Facts)
	class := "head"
	if s.Up.Faulty() {
		class += " bad"
	}
	p.text(x+12, y+20, "b", s.Name, wide/2)
	kind := s.Kind
	if s.Up == Broken {
		kind += ", missing"
	} else if s.Up == Down {
		kind += ", down"
	}
	at := x + 12 + int(float64(min(len([]rune(s.Name)), wide/2))*8) + 10
	p.text(at, y+20, "s", kind, wide/2)
	for i, f := range s.Facts {
		p.text(x+12, y+20+line*(i+1), "", f, wide+2)
	}
	top := y + head
	ends := s.Ends
	for at := 0; at < len(ends) || at == len(ends) && s.More > 0; at += s.across {
		cards := ends[at:min(at+s.across, len(ends))]
		folded := len(cards) < s.across && s.More > 0
		top = p.row(s, cards, folded, x, y+head, top)
		if folded {
			break
		}
	}
	box := &bytes.Buffer{}
	fmt.Fprintf(box, `<rect class="panel" x="%d" y="%d" width="%d" height="%d" rx="8"/>`+"\n", x, y, s.width, top+pad-y)
	fmt.Fprintf(box, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="8"/>`+"\n", class, x, y, s.width, head)
	p.boxes = *bytes.NewBuffer(slices.Concat(box.Bytes(), p.boxes.Bytes())) // behind its cards
	return top + pad
}

// row draws a row of cards below top, with the lines from the panel's head, and returns the y where it ends.
func (p *picture) row(s panel, cards []End, folded bool, x, head, top int) (end int) {
	trunk, bus := x+pad/2, top+12
	p.wire("", trunk, head, trunk, bus)
	left, high := x+pad, 0
	var bodies [][]words
	for _, e := range cards {
		body := p.card(e)
		bodies = append(bodies, body)
		high = max(high, 16+line*len(body))
	}
	y, last := top+wireDrop+6, trunk
	for i, e := range cards {
		last = left + 20
		p.wire(e.Wire, last, bus, last, y)
		way := e.Host
		if way == "" {
			way = e.Kind
		}
		class := "s"
		if e.Wire.Faulty() {
			class, way = "err", strings.TrimSpace(way+" "+string(e.Wire))
		}
		p.text(last+8, bus+18, class, way, columns-4)
		class = "card"
		if e.Alive == "gone" {
			class += " gone"
		}
		p.box(class, left, y, cardWidth, high, 6)
		dot := map[string]string{"alive": "ok", "gone": "err"}[e.Alive]
		if dot == "" {
			dot = "unk"
		}
		fmt.Fprintf(&p.words, `<circle class="dot %s" cx="%d" cy="%d" r="4"><title>%s</title></circle>`+"\n", dot,
			left+cardWidth-14, y+16, escaped(e.Alive))
		for n, l := range bodies[i] {
			l.draw(p, left+12, y+20+line*n)
		}
		left += cardWidth + gap
	}
	if folded {
		last = left + 20
		p.wire("", last, bus, last, y)
		high = max(high, 44)
		p.box("card gone", left, y, cardWidth, high, 6)
		p.text(left+12, y+26, "s", s.more(), columns)
	}
	p.wire("", trunk, bus, last, bus)
	return y + high
}

// words is a line of a card: one text, or several pills.
type words struct {
	class string
	text  string
	pills []string
}

func (w words) draw(p *picture, x, y int) {
	if w.pills == nil {
		p.text(x, y, w.class, w.text, columns)
		return
	}
	for _, s := range w.pills {
		wide := int(float64(len([]rune(s)))*6.7) + 12
		p.box("pill", x, y-12, wide, 15, 7)
		p.text(x+6, y-1, "pt", s, columns)
		x += wide + 6
	}
}

// card returns the lines of a card.
func (p *picture) card(e End) (all []words) {
	const most = 6 // more ports are counted only
	for _, l := range wrapped(visible(e.Container), columns-5, 2) {
		all = append(all, words{class: "b", text: l})
	}
	about := e.Network
	if e.ID != "" && e.ID != e.Container {
		about += " · " + e.ID
	}
	if e.Alive == "gone" {
		about = "gone · " + about
	}
	all = append(all, words{class: "s", text: about})
	name := e.Name
	for _, a := range e.Addresses {
		for _, l := range wrapped(name+" "+a, columns, 2) {
			all = append(all, words{text: l})
		}
		name = strings.Repeat(" ", len([]rune(e.Name)))
	}
	if len(e.Addresses) == 0 {
		all = append(all, words{text: e.Name + " without address"})
	}
	for i, port := range e.Ports {
		if i == most && len(e.Ports) > most+1 {
			all = append(all, words{class: "port", text: fmt.Sprintf(" and %d more ports", len(e.Ports)-most)})
			break
		}
		all = append(all, words{class: "port", text: "port " + port})
	}
	for _, o := range p.graph.others(e) {
		all = append(all, words{class: "s", text: o})
	}
	return append(all, pillRows(e.Marks)...)
}

// pillRows distributes short texts over as few lines as possible.
func pillRows(marks []string) (rows []words) {
	room := 0.0
	for _, m := range marks {
		m = short(visible(m), 30)
		wide := float64(len([]rune(m)))*6.7 + 18
		if room < wide {
			rows, room = append(rows, words{pills: []string{}}), cardWidth-24
		}
		room -= wide
		last := &rows[len(rows)-1]
		last.pills = append(last.pills, m)
	}
	return rows
}

func (p *picture) box(class string, x, y, wide, high, round int) {
	fmt.Fprintf(&p.boxes, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="%d"/>`+"\n", class, x, y, wide,
		high, round)
}

func (p *picture) wire(s State, x1, y1, x2, y2 int) {
	class := "w"
	if s.Faulty() {
		class += " bad"
	}
	fmt.Fprintf(&p.wires, `<path class="%s" d="M%d %dL%d %d"/>`+"\n", class, x1, y1, x2, y2)
}

// text writes at most `most` characters of a text. The rest is in its title, which the pointer shows.
func (p *picture) text(x, y int, class, text string, most int) {
	text = visible(text)
	cut := short(text, most)
	attr, title := "", ""
	if class != "" {
		attr = ` class="` + class + `"`
	}
	if cut != text {
		title = "<title>" + escaped(text) + "</title>"
	}
	fmt.Fprintf(&p.words, `<text%s x="%d" y="%d" xml:space="preserve">%s%s</text>`+"\n", attr, x, y, escaped(cut),
		title)
}

// short replaces the middle of a text that is too long, because names differ at their ends.
func short(text string, most int) string {
	r := []rune(text)
	if len(r) <= most || most < 5 {
		return text
	}
	return string(r[:most/2]) + "…" + string(r[len(r)-(most-most/2-1):])
}

// wrapped breaks text into at most rows lines of at most most characters, after punctuation if possible.
func wrapped(text string, most, rows int) (lines []string) {
	r := []rune(text)
	for len(r) > most && rows > 1 {
		at := most
		for i := most; i > most/2; i-- {
			if strings.ContainsRune("/-:. ", r[i-1]) {
				at = i
				break
			}
		}
		lines, r, rows = append(lines, string(r[:at])), r[at:], rows-1
	}
	return append(lines, short(string(r), most))
}

// fit returns how many characters fit into a width.
func fit(width int) int { return int(float64(width) / letter) }

func escaped(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(visible(text))) // a strings.Builder returns no error
	return b.String()
}

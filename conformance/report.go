package conformance

import (
	"fmt"
	"io"
)

// People writes reports as text. Verbose also has what passed.
func People(w io.Writer, reports []Report, verbose bool) {
	for _, r := range reports {
		s := r.Subject
		fmt.Fprintf(w, "%s: %s plugin, CNI %s (%s)\n", s.Type, s.Kind, join(s.Versions), s.Path)
		for _, o := range r.Outcomes {
			o.people(w, verbose)
		}
		fmt.Fprintf(w, "  %d passed, %d failed, %d could not be made, %d do not apply\n\n",
			r.count(Pass), r.count(Fail), r.count(Error), r.count(Skip))
	}
}

func (o Outcome) people(w io.Writer, verbose bool) {
	switch o.Status {
	case Pass:
		if verbose {
			fmt.Fprintf(w, "  ok    %-22s %s\n", o.Check, o.Title)
		}
	case Skip:
		if verbose {
			fmt.Fprintf(w, "  -     %-22s %s\n", o.Check, o.Reason)
		}
	case Error:
		fmt.Fprintf(w, "  ERROR %-22s %s\n", o.Check, o.Title)
		fmt.Fprintf(w, "        reason    %s\n        repeat    %s\n", o.Reason, o.Repeat)
	case Fail:
		fmt.Fprintf(w, "  FAIL  %-22s %s\n", o.Check, o.Title)
		fmt.Fprintf(w, "        clause    %s: %q\n", o.Clause, o.Sentence)
		fmt.Fprintf(w, "        expected  %s\n", o.Expected)
		fmt.Fprintf(w, "        seen      %s\n", o.Seen)
		if o.Call != "" {
			fmt.Fprintf(w, "        call      %s\n", o.Call)
		}
		fmt.Fprintf(w, "        repeat    %s\n", o.Repeat)
	}
}

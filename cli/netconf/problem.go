package netconf

import (
	"errors"

	"github.com/fairlead-cni/fairlead/spec"
)

// A FileProblem is what is wrong with a file, and where.
type FileProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Problem string `json:"problem"`
}

func (p FileProblem) String() string {
	if p.File == "" {
		return p.Problem
	}
	return (&spec.FileError{File: p.File, Line: p.Line, Column: p.Column, Err: errors.New(p.Problem)}).Error()
}

// ProblemOf is err with the place in the file where it has one.
func ProblemOf(err error) FileProblem {
	var f *spec.FileError
	if errors.As(err, &f) {
		return FileProblem{f.File, f.Line, f.Column, f.Err.Error()}
	}
	return FileProblem{Problem: err.Error()}
}

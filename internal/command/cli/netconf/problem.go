package netconf

import (
	"errors"

	"github.com/fairlead-cni/fairlead/spec"
)

// FileProblem is an error in a file, with its place.
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

// ProblemOf returns err with its place in the file, if it has one.
func ProblemOf(err error) FileProblem {
	var f *spec.FileError
	if errors.As(err, &f) {
		return FileProblem{f.File, f.Line, f.Column, f.Err.Error()}
	}
	return FileProblem{Problem: err.Error()}
}

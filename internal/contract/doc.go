// Package contract holds resources and their kinds to the contracts of package plan, each in a throw-away host: what
// Ensure makes Verify finds, Remove takes all of it and nothing else, and Owners names whose it is.
package contract

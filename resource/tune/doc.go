// Package tune holds what plugin tuning changes of a link and of sysctls, and what it was before. The record of it is read below, too:
// resource.RecallTuned.
package tune

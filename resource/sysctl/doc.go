// Package sysctl holds sysctls as resources: single settings, forwarding, IPv6 on and off, and the list of allowed
// sysctls.
package sysctl

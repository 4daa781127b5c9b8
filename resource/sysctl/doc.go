// Package sysctl holds sysctls as resources: single ones, forwarding, IPv6 on and off, and the list of those that may
// be set.
package sysctl

// Package filtertest is what the tests of filter and of its rooms share: a host with containers and neighbours, what
// the host's packet filter looks like, resources of each room, and their kinds. Only tests outside of their package can
// import it.
package filtertest

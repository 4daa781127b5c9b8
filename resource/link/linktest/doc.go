// Package linktest makes links for tests of the packages above link.
package linktest

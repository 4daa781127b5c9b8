// Package schema tests that the JSON Schemas of docs/schema accept and reject what the plugins do.
package schema

// Package tools holds what builds and checks the repository and is no part of
// the product: the pinned versions of the tools it is built with (the tool lines
// of go.mod; the linter's are in lint/go.mod), modsync, and the checks of layers
// and conventions, which are ordinary Go tests.
package tools

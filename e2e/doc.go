// Package e2e tests what a Service does in a real cluster, the same for every
// mode. See README.md for how to run it.
package e2e

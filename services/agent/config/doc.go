// Package config reads, completes and checks everything that the agent is
// told: kube-proxy's configuration file and flags, which mean here what they
// mean there, and the few settings that are Portway's own.
//
// Two rules are stricter than kube-proxy's: a field that the file's type does
// not have, or has twice, is an error that names it, and so is a second
// document in the file.
package config

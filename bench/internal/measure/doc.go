// Package measure measures one proxy: what its start costs, how long changes
// take to the kernel, what packets pay, and what a restart does.
package measure

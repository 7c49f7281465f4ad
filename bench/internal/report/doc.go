// Package report turns what was measured into ratios: tables, JSON, plots, and a
// verdict against floors.
package report

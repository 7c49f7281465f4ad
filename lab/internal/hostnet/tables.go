package hostnet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/portway/portway/lab/internal/command"
)

// iptablesTables are those that iptables makes in nftables, empty and with its
// built-in chains, when it is first asked about them.
func iptablesTables() []string {
	var tables []string
	for _, family := range []string{"ip", "ip6"} {
		for _, name := range []string{"filter", "mangle", "nat", "raw"} {
			tables = append(tables, family+" "+name)
		}
	}
	return tables
}

// tables are the nftables tables there are, as "family name".
func (h Host) tables(ctx context.Context) ([]string, error) {
	out, err := h.Run.Run(ctx, command.New("nft", "list", "tables"))
	if err != nil {
		return nil, err
	}
	tables := []string{}
	for line := range strings.Lines(out) {
		tables = append(tables, strings.TrimPrefix(strings.TrimSpace(line), "table "))
	}
	return tables, nil
}

// removeEmptyTables removes the tables that iptables made since before, if they
// do nothing.
func (h Host) removeEmptyTables(ctx context.Context, before []string) error {
	now, err := h.tables(ctx)
	if err != nil {
		return err
	}
	for _, table := range now {
		if slices.Contains(before, table) || !slices.Contains(iptablesTables(), table) {
			continue
		}
		args := append([]string{"nft", "list", "table"}, strings.Fields(table)...)
		listing, err := h.Run.Run(ctx, command.New(args...))
		if err != nil {
			return err
		}
		if !doesNothing(listing) {
			continue
		}
		args[1] = "delete"
		if _, err := h.Run.Run(ctx, command.New(args...)); err != nil {
			return fmt.Errorf("empty table %s: %w", table, err)
		}
	}
	return nil
}

// doesNothing reports whether a listing of a table has no more than built-in
// chains that accept everything.
func doesNothing(listing string) bool {
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", line == "}", strings.HasPrefix(line, "#"), strings.HasPrefix(line, "table "), strings.HasPrefix(line, "chain "):
		case strings.HasPrefix(line, "type ") && strings.HasSuffix(line, "policy accept;"):
		default:
			return false
		}
	}
	return true
}

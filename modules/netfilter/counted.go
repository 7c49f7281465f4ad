package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// CountedRule is a rule with the number of packets that have matched it since
// it was written.
type CountedRule struct {
	Rule
	Packets uint64
}

// Counted reads one chain with its counters. Other chains are not looked at, so
// it costs little in a large nat table of nft; iptables-legacy reads its table.
func (h *Host) Counted(ctx context.Context, t Table, chain string) ([]CountedRule, error) {
	if !h.backend.isMade(t) {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	cmd := exec.CommandContext(ctx, h.backend.command, "-t", string(t), "-v", "-S", chain)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, saveError(ctx, cmd, nil, err, stderr.Bytes())
	}
	rules, err := readCounted(t, string(out))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return rules, nil
}

// readCounted reads what "iptables -v -S" printed.
func readCounted(t Table, out string) ([]CountedRule, error) {
	var plain strings.Builder
	var packets []uint64
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "-A ") {
			n, rest, err := cutCounter(strings.TrimSpace(line))
			if err != nil {
				return nil, err
			}
			packets = append(packets, n)
			line = rest + "\n"
		}
		plain.WriteString(line)
	}
	var rules []CountedRule
	text := io.MultiReader(strings.NewReader("*"+string(t)+"\n"), strings.NewReader(plain.String()), strings.NewReader("COMMIT\n"))
	err := ReadSave(text, func(_ Table, c Chain) error {
		for _, r := range c.Rules {
			if len(rules) == len(packets) {
				return errors.New("more rules than counters")
			}
			rules = append(rules, CountedRule{r, packets[len(rules)]})
		}
		return nil
	})
	return rules, err
}

// cutCounter takes "-c PACKETS BYTES", which stands before the target, out of a
// rule. A comment may hold the same words, but stands before.
func cutCounter(line string) (packets uint64, rest string, err error) {
	const option = " -c "
	i := strings.LastIndex(line, option)
	if i < 0 {
		return 0, "", fmt.Errorf("the rule %q has no counter", line)
	}
	fields := strings.SplitN(line[i+len(option):], " ", 3)
	if len(fields) < 2 {
		return 0, "", fmt.Errorf("the rule %q has half a counter", line)
	}
	if packets, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
		return 0, "", fmt.Errorf("the counter of the rule %q: %w", line, err)
	}
	rest = line[:i]
	if len(fields) == 3 {
		rest += " " + fields[2]
	}
	return packets, rest, nil
}

package netfilter

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// ErrLockTimeout says that another program held the xtables lock for longer
// than we wait. Nothing was changed; trying again later is right.
var ErrLockTimeout = errors.New("another program holds the xtables lock")

// RestoreError is a transaction that was refused. Nothing of it was applied,
// unless the program was killed, by the context say, after its commit.
type RestoreError struct {
	// Command can be pasted into a shell; its input is the transaction.
	Command string
	Table   Table
	// Line of the transaction, from 1, and its text; zero if unknown.
	Line int
	Text string
	// Chain to which the line belongs, empty if unknown.
	Chain string
	// Output of the program, cut to 2 kB.
	Output string
	// Err is ErrLockTimeout, the context's error, or how the program ended.
	Err error
}

// Error names the chain and the line, and what the program said.
func (e *RestoreError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: table %s", e.Command, e.Table)
	if e.Chain != "" {
		fmt.Fprintf(&b, ", chain %s", e.Chain)
	}
	if e.Line != 0 {
		fmt.Fprintf(&b, ", line %d (%s)", e.Line, e.Text)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Output != "" {
		fmt.Fprintf(&b, ": %s", strings.Join(strings.Fields(e.Output), " "))
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *RestoreError) Unwrap() error { return e.Err }

const maxOutput = 2 << 10

// explain fills in what the output of the program tells about the input.
func (e *RestoreError) explain(tx *Transaction, input, output []byte) {
	e.Table = tx.Table
	e.Output = string(output[:min(len(output), maxOutput)])
	if bytes.Contains(output, []byte("holding the xtables lock")) {
		e.Err = ErrLockTimeout
		return
	}
	e.Line = failedLine(output)
	e.Text = lineOf(input, e.Line)
	if e.Text == "COMMIT" {
		e.atCommit(tx, input, output)
		return
	}
	e.Chain = tx.chainAt(e.Line)
}

// atCommit handles what is found out at the end only. iptables-nft looks for
// chains to jump to there, and names the missing one; from iptables-legacy
// there is nothing to learn.
func (e *RestoreError) atCommit(tx *Transaction, input, output []byte) {
	e.Line, e.Text = 0, ""
	_, rest, ok := bytes.Cut(output, []byte("Chain '"))
	missing, _, ok2 := bytes.Cut(rest, []byte("' does not exist"))
	if !ok || !ok2 {
		return
	}
	for n, line := range bytes.Split(input, []byte("\n")) {
		if bytes.HasSuffix(line, append([]byte("-j "), missing...)) ||
			bytes.HasSuffix(line, append([]byte("-g "), missing...)) {
			e.Line, e.Text = n+1, string(line)
			e.Chain = tx.chainAt(e.Line)
			return
		}
	}
}

// failedLine finds the number in "Error occurred at line: 4", "line 5: …
// failed" and "line 6 failed", the forms of iptables 1.6 to 1.8.
func failedLine(output []byte) int {
	m := regexp.MustCompile(`(?m)(?:at line: |^line |: line )(\d+)`).FindSubmatch(output)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return 0
	}
	return n
}

func lineOf(input []byte, n int) string {
	for ; n > 1; n-- {
		_, input, _ = bytes.Cut(input, []byte("\n"))
	}
	line, _, _ := bytes.Cut(input, []byte("\n"))
	return string(line)
}

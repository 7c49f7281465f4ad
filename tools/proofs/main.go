// Command proofs joins the documents that say what Portway does with the tests
// that prove it.
//
// docs/semantics.md has a number for each decision (S2.4), docs/bugs.md the
// public numbers of known bugs (kubernetes#19029, CVE-2019-9946). A test carries
// the numbers of what it proves: in its text, the comment above it included. The
// command finds them and writes the proofs under each line of the documents. It
// fails, and writes nothing with -check, if a line lacks a proof in a mode that
// it holds for, or if a test carries a number that no line has.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/portway/portway/tools/workspace"
)

// documents are the files whose lines need proofs.
var documents = []string{"docs/semantics.md", "docs/bugs.md"}

func main() {
	check := flag.Bool("check", false, "change nothing; fail if a document would change")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, ".", *check); err != nil {
		fmt.Fprintln(os.Stderr, "proofs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, dir string, check bool) error {
	root, err := workspace.Root(dir)
	if err != nil {
		return err
	}
	proofs, err := findAll(ctx, root)
	if err != nil {
		return err
	}
	var entries []*entry
	var problems []string
	for _, name := range documents {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		d := parseDocument(name, string(text))
		d.attach(proofs)
		entries = append(entries, d.entries...)
		want := []byte(d.String())
		switch {
		case bytes.Equal(text, want):
		case check:
			problems = append(problems, name+" does not name the proofs that there are: run `go run ./tools/proofs`")
		default:
			if err := os.WriteFile(filepath.Join(root, name), want, 0o644); err != nil {
				return err
			}
			fmt.Fprintf(out, "wrote %s\n", name)
		}
	}
	offered, err := offeredModes(root)
	if err != nil {
		return err
	}
	problems = append(problems, checkEntries(entries, offered)...)
	problems = append(problems, checkReferences(entries, proofs)...)
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}

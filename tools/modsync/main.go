// Command modsync writes what ties the modules of this repository together: the
// replace lines of siblings in each go.mod, and the use lines of go.work. With
// -check it writes nothing and exits 1 if a file differs.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/portway/portway/tools/workspace"
)

func main() {
	check := flag.Bool("check", false, "change nothing; exit 1 if a file would change")
	flag.Parse()
	if err := run(os.Stdout, ".", *check); err != nil {
		fmt.Fprintln(os.Stderr, "modsync:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, dir string, check bool) error {
	root, err := workspace.Root(dir)
	if err != nil {
		return err
	}
	edits, err := plan(root)
	if err != nil {
		return err
	}
	for _, edit := range edits {
		if check {
			fmt.Fprintf(out, "%s is not in step with its siblings\n", edit.path)
			continue
		}
		if err := os.WriteFile(filepath.Join(root, edit.path), edit.want, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(out, "wrote %s\n", edit.path)
	}
	if check && len(edits) > 0 {
		return fmt.Errorf("%d files to write; run `make tidy`", len(edits))
	}
	return nil
}

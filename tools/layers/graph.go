package layers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Package is one package of the import graph.
type Package struct {
	Imports []string
	// TestImports are what its own tests import, directly.
	TestImports []string
}

// Graph holds packages by import path: the ones asked for and all that they and
// their tests depend on. The standard library is left out.
type Graph map[string]Package

// listed is what `go list -json` tells of a package.
type listed struct {
	ImportPath, ForTest                string
	Imports, TestImports, XTestImports []string
	Standard                           bool
}

// Load reads the import graph of the packages that match patterns in dir.
func Load(ctx context.Context, dir string, patterns ...string) (Graph, error) {
	args := append([]string{
		"list", "-deps", "-test",
		"-json=ImportPath,ForTest,Imports,TestImports,XTestImports,Standard",
	}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cd %s && %s: %w\n%s", dir, cmd, err, stderr.Bytes())
	}
	return decode(bytes.NewReader(out))
}

func decode(r io.Reader) (Graph, error) {
	graph := make(Graph)
	for decoder := json.NewDecoder(r); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return graph, nil
		} else if err != nil {
			return nil, fmt.Errorf("output of go list: %w", err)
		}
		// Variants of a package that are built for a test, and the test's main.
		if p.Standard || p.ForTest != "" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		graph[p.ImportPath] = Package{
			Imports:     p.Imports,
			TestImports: slices.Concat(p.TestImports, p.XTestImports),
		}
	}
}

// standard says whether an import path is of the standard library: no dot in
// its first element, as the go command has it.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

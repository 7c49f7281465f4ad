package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/portway/portway/tools/conventions"
)

// lawsDir holds the laws and the scenarios that every mode must pass.
const lawsDir = "modules/dataplane/dataplanetest"

// A proof is a test that carries references.
type proof struct {
	// owner is what runs it: "scenario" and "law" in every mode, "e2e" in a
	// cluster, else the module.
	owner string
	name  string
	file  string
	refs  []reference
	// mode is the only one that it says something about; "" is every one.
	mode string
}

// findAll finds the proofs in the files that git knows.
func findAll(ctx context.Context, root string) ([]proof, error) {
	files, err := conventions.Files(ctx, root)
	if err != nil {
		return nil, err
	}
	var all []proof
	for _, name := range files {
		if !mayProve(name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted in the work tree
		}
		if err != nil {
			return nil, err
		}
		found, err := proofsIn(name, text)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// mayProve leaves out the tests of the tools, whose numbers are made up.
func mayProve(name string) bool { return !strings.HasPrefix(name, "tools/") }

// proofsIn finds those of one file that carry a reference.
func proofsIn(name string, text []byte) ([]proof, error) {
	dir := path.Dir(name)
	base := strings.TrimSuffix(path.Base(name), path.Ext(name))
	switch {
	case path.Ext(name) == ".txtar" && path.Base(dir) == "scenarios":
		return carriers(proof{owner: "scenario", name: base, file: name, mode: modeOf(name)}, string(text)), nil
	case path.Ext(name) == ".txt" && path.Base(dir) == "script":
		return carriers(proof{owner: moduleOf(name), name: "script " + base, file: name}, string(text)), nil
	case strings.HasSuffix(name, "_test.go") || dir == lawsDir && path.Ext(name) == ".go":
		return proofsInGo(name, text)
	}
	return nil, nil
}

// carriers is the proof, if its text carries a reference.
func carriers(p proof, text string) []proof {
	if p.refs = referencesIn(text); p.refs == nil {
		return nil
	}
	return []proof{p}
}

func proofsInGo(name string, text []byte) ([]proof, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	source := func(from, to token.Pos) string {
		return string(text[files.Position(from).Offset:files.Position(to).Offset])
	}
	var all []proof
	for _, d := range file.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Recv != nil {
			continue
		}
		if p, ok := proofOf(name, function.Name.Name); ok {
			all = append(all, carriers(p, function.Doc.Text()+source(function.Pos(), function.End()))...)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if spec := specName(call); ok && spec != "" {
			before := commentBefore(files, file, call.Pos())
			all = append(all, carriers(proof{owner: "e2e", name: strconv.Quote(spec), file: name}, before+source(call.Pos(), call.End()))...)
		}
		return true
	})
	return all, nil
}

var testName = regexp.MustCompile(`^(Test|Fuzz)[^a-z]`)

// proofOf tells what a function is that stands in a test's file, or among the
// laws: there the functions that state properties are named in RunLaws.
func proofOf(file, function string) (proof, bool) {
	switch isTest := strings.HasSuffix(file, "_test.go"); {
	case isTest && testName.MatchString(function):
		return proof{owner: moduleOf(file), name: function, file: file, mode: modeOf(file)}, true
	case !isTest && function != "RunLaws" && function != "RunScenarios":
		return proof{owner: "law", name: function, file: file}, true
	}
	return proof{}, false
}

// specName is the text of a Ginkgo spec.
func specName(call *ast.CallExpr) string {
	if call == nil || len(call.Args) == 0 {
		return ""
	}
	function, ok := call.Fun.(*ast.Ident)
	if !ok || function.Name != "It" && function.Name != "Entry" {
		return ""
	}
	text, ok := call.Args[0].(*ast.BasicLit)
	if !ok || text.Kind != token.STRING {
		return ""
	}
	name, err := strconv.Unquote(text.Value)
	if err != nil {
		return ""
	}
	return name
}

// commentBefore is the comment that ends in the line above.
func commentBefore(files *token.FileSet, file *ast.File, pos token.Pos) string {
	for _, c := range file.Comments {
		if files.Position(c.End()).Line == files.Position(pos).Line-1 {
			return c.Text()
		}
	}
	return ""
}

// moduleOf is the last word of a module's directory.
func moduleOf(file string) string {
	parts := strings.Split(file, "/")
	if len(parts) > 2 && (parts[0] == "modules" || parts[0] == "services") {
		return parts[1]
	}
	return parts[0]
}

// modeOf is the mode that a test is about: what only one mode uses tells
// nothing about others.
func modeOf(file string) string {
	switch module := moduleOf(file); {
	case isMode(module):
		return module
	case module == "relay" && path.Base(file) != "loopback_test.go":
		return "userspace" // NodePorts on loopback are relayed in every mode
	}
	return ""
}

func (p proof) String() string { return fmt.Sprintf("%s %s", p.owner, p.name) }

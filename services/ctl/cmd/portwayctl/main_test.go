package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"portwayctl": main})
}

// TestScripts runs the program against an agent that answers with files:
// `agent DIR` serves DIR/explain, DIR/audit on the socket of the script, and
// notes in DIR/asked what it was asked.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"agent": agent},
	})
}

func agent(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	socket := ts.MkAbs("s")
	_ = os.Remove(socket) // of an earlier agent
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	ts.Check(err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := os.WriteFile(filepath.Join(dir, "asked"), []byte(r.URL.RequestURI()+"\n"), 0o600); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Path)))
		if err != nil {
			http.Error(w, "nothing is known of this node yet: give one", http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s", answer)
	})}
	go func() { _ = srv.Serve(l) }()
	ts.Defer(func() { _ = srv.Close() })
}

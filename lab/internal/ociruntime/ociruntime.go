// Package ociruntime edits what Docker hands to its OCI runtime so that
// privileged containers start on machines whose capability bounding set is not
// full.
//
// Docker asks for every capability it knows when a container is privileged.
// runc cannot give one that this machine's bounding set lacks ("unable to apply
// caps"). The wrapper drops such capabilities from the request, then runs runc.
package ociruntime

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is the file in an invocation of runc that lists capabilities, or "" if
// the invocation has none. runc takes it from --bundle (create, run, restore)
// or --process (exec).
func File(args []string) string {
	verb := verbOf(args)
	switch verb {
	case "create", "run", "restore":
		bundle := flag(args, "bundle", "b")
		if bundle == "" {
			bundle = "."
		}
		return filepath.Join(bundle, "config.json")
	case "exec":
		return flag(args, "process", "p")
	}
	return ""
}

// verbOf is runc's subcommand: the first word that is one, whatever global
// flags with values stand before it.
func verbOf(args []string) string {
	verbs := []string{"create", "run", "restore", "exec", "start", "kill", "delete", "state", "features", "update", "ps", "list", "events", "pause", "resume", "checkpoint", "spec"}
	for _, a := range args {
		if slices.Contains(verbs, a) {
			return a
		}
	}
	return ""
}

func flag(args []string, long, short string) string {
	for i, a := range args {
		name, value, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !strings.HasPrefix(a, "-") || name != long && name != short {
			continue
		}
		if joined {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// EditFile removes from the file every capability that is not in allowed. A
// file without any to remove is left untouched.
func EditFile(path string, allowed []string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("OCI configuration: %w", err)
	}
	edited, changed, err := Edit(content, allowed)
	if err != nil {
		return fmt.Errorf("OCI configuration %s: %w", path, err)
	}
	if !changed {
		return nil
	}
	if err := os.WriteFile(path, edited, 0o644); err != nil {
		return fmt.Errorf("OCI configuration: %w", err)
	}
	return nil
}

// Edit removes from a config.json or process.json every capability that is not
// in allowed, and keeps everything else as it is.
func Edit(content []byte, allowed []string) (edited []byte, changed bool, err error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(content, &doc); err != nil {
		return nil, false, err
	}
	if process, ok := doc["process"]; ok { // config.json
		edited, changed, err := Edit(process, allowed)
		if err != nil || !changed {
			return content, false, err
		}
		doc["process"] = edited
		out, err := json.Marshal(doc)
		return out, true, err
	}
	raw, ok := doc["capabilities"]
	if !ok || string(raw) == "null" {
		return content, false, nil
	}
	var sets map[string][]string
	if err := json.Unmarshal(raw, &sets); err != nil {
		return nil, false, fmt.Errorf("capabilities: %w", err)
	}
	for name, set := range sets {
		kept := slices.DeleteFunc(slices.Clone(set), func(c string) bool { return !slices.Contains(allowed, c) })
		changed = changed || len(kept) != len(set)
		sets[name] = kept
	}
	if !changed {
		return content, false, nil
	}
	if doc["capabilities"], err = json.Marshal(sets); err != nil {
		return nil, false, err
	}
	out, err := json.Marshal(doc)
	return out, true, err
}

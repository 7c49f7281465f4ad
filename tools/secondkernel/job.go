package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// job is what the guest is asked to do. It is a file in the folder that host
// and guest share.
type job struct {
	Argv []string
	Dir  string
	Env  []string
	// Modprobe is the program that loads modules of the guest's kernel.
	Modprobe string
	// Visible and Writable are folders of the machine that the guest has at the
	// same paths although its /tmp and /run are its own.
	Visible, Writable []string
}

const jobFile = "job.json"

func (j job) write(folder string) error {
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, jobFile), b, 0o600)
}

func readJob(folder string) (j job, err error) {
	b, err := os.ReadFile(filepath.Join(folder, jobFile))
	if err != nil {
		return j, err
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return j, fmt.Errorf("%s: %w", jobFile, err)
	}
	return j, nil
}

// passed are the variables that mean the same inside, beside those that begin
// with GO or PORTWAY.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TERM", "PWD",
	"CI", "GITHUB_ACTIONS", "XTABLES_LIBDIR",
}

// chooseEnv is the part of env that the guest's command gets.
func chooseEnv(env, more []string) []string {
	var chosen []string
	for _, variable := range env {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "GO") || strings.HasPrefix(name, "PORTWAY") ||
			slices.Contains(passed, name) || slices.Contains(more, name) {
			chosen = append(chosen, variable)
		}
	}
	return chosen
}

// hidden are the directories that the guest has of its own.
var hidden = []string{"/tmp", "/run", "/dev", "/proc", "/sys"}

// hiddenFolders are those of folders that lie in a directory that the guest has
// of its own, each once.
func hiddenFolders(folders []string) []string {
	var found []string
	for _, folder := range folders {
		isIn := func(parent string) bool { return strings.HasPrefix(folder, parent+"/") }
		if slices.ContainsFunc(hidden, isIn) && !slices.Contains(found, folder) {
			found = append(found, folder)
		}
	}
	return found
}
